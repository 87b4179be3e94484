//! When a guest is told that what it sent is gone.
//!
//! With `VIRTIO_F_EVENT_IDX` (VIRTIO 1.2, 2.7.7) the driver writes after which used buffer it wants an interrupt, and the device interrupts when it uses that one. Linux's driver (drivers/net/virtio_net.c,
//! drivers/virtio/virtio_ring.c) wants it late: whenever it sends it asks for three quarters of what is outstanding (`virtqueue_enable_cb_delayed`), and frees at once where more than that is used
//! already; whenever it polls what it receives it frees what is used (`virtnet_poll_cleantx`) and asks likewise; and after an interrupt it frees, and asks for the next (`virtqueue_enable_cb_prepare`). So a guest that sends one message at a time
//! has an interrupt for each, and one that sends many while its worker is at them has few.

/// A transmit queue as its driver and its device know it: counts since it was made, which only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sends {
    /// What the driver has given to the device.
    sent: u64,
    /// Of it, what that has used.
    used: u64,
    /// Of it, what the driver has freed since.
    freed: u64,
    /// The driver wants an interrupt when the device uses the one with this number, from 0.
    event: u64,
    /// What was used when the device last saw whether it does.
    seen: u64,
}

impl Sends {
    /// The driver sends one.
    pub fn send(&mut self) {
        self.sent += 1;
        if self.asks_late() {
            self.free();
        }
    }

    /// The driver polls what it has received, and frees what is used by the way.
    pub fn poll(&mut self) {
        self.freed = self.used;
        self.asks_late();
    }

    /// The driver frees what is used.
    pub fn free(&mut self) {
        self.freed = self.used;
        self.event = self.freed;
    }

    /// Asks for an interrupt after three quarters of what is outstanding. Whether more than that is used already.
    fn asks_late(&mut self) -> bool {
        let late = (self.sent - self.freed) * 3 / 4;
        self.event = self.freed + late;
        self.used - self.freed > late
    }

    /// The device has used so many. Whether it interrupts.
    pub fn used(&mut self, count: u32) -> bool {
        self.used += u64::from(count);
        let since = std::mem::replace(&mut self.seen, self.used);
        (since..self.used).contains(&self.event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Send,
        Use(u32),
        Poll,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => Just(Act::Send),
            2 => (1_u32..64).prop_map(Act::Use),
            1 => Just(Act::Poll),
        ]
    }

    #[test]
    fn whoever_sends_one_at_a_time_is_told_of_each() {
        let mut queue = Sends::default();
        for _ in 0..10 {
            queue.send();
            assert!(queue.used(1));
            queue.free();
        }
    }

    /// Eight outstanding: the seventh, whatever is used at once.
    #[test]
    fn whoever_sends_many_is_told_once_three_quarters_are_gone() {
        for step in [1, 2, 4] {
            let mut queue = Sends::default();
            for _ in 0..8 {
                queue.send();
            }
            let told: Vec<bool> = (0..8 / step).map(|_| queue.used(step)).collect();
            let wanted: Vec<bool> = (0..8 / step)
                .map(|nth| (nth * step..(nth + 1) * step).contains(&6))
                .collect();
            assert_eq!(told, wanted, "{step} at a time");
        }
    }

    /// The more its worker is behind, the fewer interrupts it has: with b outstanding before, of the first k for which k - 1 is three quarters of k + b, 4, 10 and 25.
    #[test]
    fn whoever_sends_on_before_the_last_is_gone_is_told_of_few() {
        let told = |behind: u32| {
            let mut queue = Sends::default();
            (0..behind).for_each(|_| queue.send());
            let mut told = 0;
            for _ in 0..1000 {
                queue.send();
                if queue.used(1) {
                    told += 1;
                    queue.free();
                }
            }
            told
        };
        assert_eq!([0, 1, 3, 8].map(told), [1000, 250, 100, 40]);
    }

    proptest! {
        /// What is used is freed or told of: no buffer stays with the device for good.
        #[test]
        fn nothing_used_is_left_behind(acts in prop::collection::vec(act(), 1..200)) {
            let mut queue = Sends::default();
            let (mut outstanding, mut told) = (0, false);
            for act in acts {
                match act {
                    Act::Send => {
                        queue.send();
                        outstanding += 1;
                    }
                    Act::Use(count) => {
                        let count = count.min(outstanding);
                        outstanding -= count;
                        told |= queue.used(count);
                    }
                    Act::Poll => queue.poll(),
                }
                // An interrupt is seen to at some time; here, once all is used.
                if outstanding == 0 {
                    prop_assert!(told || queue.freed == queue.sent, "{queue:?}");
                    queue.free();
                    prop_assert_eq!(queue.freed, queue.sent);
                    told = false;
                }
                prop_assert!(queue.freed <= queue.used && queue.used <= queue.sent);
            }
        }
    }
}
