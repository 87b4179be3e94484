//! How long a task takes by how much memory its files have: a queue that serves all at once (paper, section 5.1, equations 1 and 2).
//!
//! A guest's tasks share its processors, so they are an M/G/1 queue with processor sharing, whose mean response time depends on service times by their mean alone:
//!
//! ```text
//! R = E[X|m] / (1 - lambda E[X|m])
//! ```
//!
//! E[X|m] was measured beforehand, without load, for several sizes m. For a wanted response time tau it must be tau / (1 + lambda tau), which is the equation solved for it; the
//! least size at which it is no more is the answer. No iteration is needed.

/// Mean service times by size, as they were measured: between two sizes on the line through both, beyond them as at the nearest.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Size in bytes and mean service time in seconds, sizes rising, times not.
    points: Vec<(f64, f64)>,
}

/// Measurements from which no service time can be told.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServiceError {
    /// None at all.
    #[error("there is no service time; measure tasks without load at two sizes or more")]
    None,
    /// A figure that is none, or sizes that don't rise.
    #[error(
        "measurement {at} is {seconds} s at {bytes} bytes; times are to be above zero and finite, and sizes in rising order"
    )]
    Figure {
        /// Which.
        at: usize,
        /// Its size.
        bytes: u64,
        /// Its time.
        seconds: f64,
    },
}

/// A size that was solved for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Solution {
    /// With this many bytes the response time is the wanted one.
    Size(u64),
    /// It is shorter even with the least size that was measured.
    Ample(u64),
    /// It is longer even with the largest, from which on more doesn't help.
    OutOfReach(u64),
}

impl Solution {
    /// The size to have.
    pub fn bytes(self) -> u64 {
        let (Solution::Size(bytes) | Solution::Ample(bytes) | Solution::OutOfReach(bytes)) = self;
        bytes
    }
}

impl Service {
    /// From measurements: bytes and seconds.
    ///
    /// More memory makes no task slower, so where measurements say otherwise it is by chance, and neighbours are averaged until they don't (pool adjacent violators: the non-rising
    /// curve of least squares).
    ///
    /// # Errors
    ///
    /// Which measurement is none.
    pub fn new(measured: &[(u64, f64)]) -> Result<Service, ServiceError> {
        if measured.is_empty() {
            return Err(ServiceError::None);
        }
        // Blocks of neighbours: how many, and the mean of their times.
        let mut blocks: Vec<(usize, f64)> = Vec::with_capacity(measured.len());
        for (at, &(bytes, seconds)) in measured.iter().enumerate() {
            let rises = at == 0 || measured[at - 1].0 < bytes;
            if !rises || !(1e-12..=1e12).contains(&seconds) {
                return Err(ServiceError::Figure { at, bytes, seconds });
            }
            let mut block = (1, seconds);
            while let Some(&(count, mean)) = blocks.last()
                && mean < block.1
            {
                let both = count + block.0;
                let sum = mean * count as f64 + block.1 * block.0 as f64;
                block = (both, sum / both as f64);
                blocks.pop();
            }
            blocks.push(block);
        }
        let times = blocks
            .iter()
            .flat_map(|&(count, mean)| std::iter::repeat_n(mean, count));
        let sizes = measured.iter().map(|(bytes, _)| *bytes as f64);
        Ok(Service {
            points: sizes.zip(times).collect(),
        })
    }

    /// Mean service time with so many bytes, s.
    pub fn mean(&self, bytes: u64) -> f64 {
        let bytes = bytes as f64;
        let after = self.points.partition_point(|point| point.0 < bytes);
        match (
            after.checked_sub(1).map(|at| self.points[at]),
            self.points.get(after),
        ) {
            (Some((m0, t0)), Some(&(m1, t1))) if bytes < m1 => {
                t0 + (t1 - t0) * (bytes - m0) / (m1 - m0)
            }
            (_, Some(&(_, time))) | (Some((_, time)), None) => time,
            (None, None) => unreachable!("a service has a point"),
        }
    }

    /// Mean response time at an arrival rate, tasks/s; none where the queue has no end.
    pub fn response(&self, bytes: u64, arrivals: f64) -> Option<f64> {
        let mean = self.mean(bytes);
        let idle = 1.0 - arrivals.max(0.0) * mean;
        (idle > 0.0).then(|| mean / idle)
    }

    /// The least size at which the mean response time is `wanted` seconds, where tasks take `times` as long as was measured.
    pub fn solve(&self, arrivals: f64, wanted: f64, times: f64) -> Solution {
        let mean = wanted / (1.0 + arrivals.max(0.0) * wanted) / times;
        let reached = self.points.partition_point(|point| point.1 > mean);
        let bytes = |size: f64| {
            // Rounded up: a byte less might not do.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it saturates, and sizes aren't below zero"
            )]
            let bytes = size.ceil() as u64;
            bytes
        };
        let Some(&(m1, t1)) = self.points.get(reached) else {
            let largest = self.points.last().map_or(0.0, |point| point.0);
            // Of sizes that are equally fast the least.
            let fastest = self.points.last().map_or(0.0, |point| point.1);
            let first = self.points.iter().find(|point| point.1 <= fastest);
            return Solution::OutOfReach(bytes(first.map_or(largest, |point| point.0)));
        };
        let Some(before) = reached.checked_sub(1) else {
            return Solution::Ample(bytes(m1));
        };
        let (m0, t0) = self.points[before];
        Solution::Size(bytes(m0 + (m1 - m0) * (t0 - mean) / (t0 - t1)))
    }
}
