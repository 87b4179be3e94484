//! What the queueing model leaves unexplained: a model of the residual error that learns as it goes (paper, section 5.1, equations 3 to 10).
//!
//! The error y in the next interval is taken to be a sum of this one's and of the change u made now, theta_1 y + theta_2 u (n_A = 1, n_B = 0, d = 1). Recursive least squares finds
//! theta; the change to make is the one for which the sum is zero.
//!
//! ```text
//! F     <- F - F phi phi' F / (1 + phi' F phi)      phi = (y, u)
//! theta <- theta + F phi (y_next - phi' theta)
//! u     =  -theta_1 y / theta_2
//! ```
//!
//! F only ever shrinks, and so does what is learned from anything new: the paper leaves it at that. With a memory below one older pairs count less, F is divided by it, and is kept
//! from growing beyond where it began as long as nothing happens that would shrink it again.

/// What is learned by, and from.
#[derive(Clone, Debug, PartialEq)]
pub struct Rls {
    /// theta.
    pub theta: [f64; 2],
    /// F, symmetric: its diagonal, and what is beside that.
    pub(super) gain: [f64; 3],
    first: f64,
    memory: f64,
}

impl Rls {
    /// `first` is f_0 > 0, how little theta is trusted; `memory` in (0, 1], 1 is the paper's.
    pub fn new(theta: [f64; 2], first: f64, memory: f64) -> Rls {
        let first = first.clamp(1e-9, 1e9);
        Rls {
            theta,
            gain: [first, 0.0, first],
            first,
            memory: if memory.is_finite() {
                memory.clamp(0.5, 1.0)
            } else {
                1.0
            },
        }
    }

    /// One that goes on with what was learned.
    pub(super) fn resume(theta: [f64; 2], gain: [f64; 3], first: f64, memory: f64) -> Rls {
        Rls {
            theta,
            gain,
            ..Rls::new(theta, first, memory)
        }
    }

    /// After (y, u) came this error. Figures that are none teach nothing.
    pub fn learn(&mut self, (error, change): (f64, f64), next: f64) {
        // Beyond this, squares of what was told leave no digits for anything else.
        let fine = |figure: f64| figure.is_finite() && figure.abs() <= 1e6;
        if ![error, change, next].into_iter().all(fine) {
            return;
        }
        let [own, cross, effect] = self.gain;
        let of_error = own * error + cross * change;
        let of_change = cross * error + effect * change;
        let scale = self.memory + error * of_error + change * of_change;
        let mut gain = [
            own - of_error * of_error / scale,
            cross - of_error * of_change / scale,
            effect - of_change * of_change / scale,
        ];
        for value in &mut gain {
            *value /= self.memory;
        }
        // Rounding may have it lose what makes it a gain at all, and a memory below one has it grow where nothing happens.
        let sound = gain[0] > 0.0 && gain[2] > 0.0 && gain[0] * gain[2] > gain[1] * gain[1];
        self.gain = if sound && gain[0].max(gain[2]) <= self.first {
            gain
        } else if sound {
            self.gain
        } else {
            [self.first * 1e-6, 0.0, self.first * 1e-6]
        };
        // F phi of the new F: no step is longer than what the pair itself allows, whatever becomes of F.
        let missed = next - (error * self.theta[0] + change * self.theta[1]);
        self.theta[0] += of_error / scale * missed;
        self.theta[1] += of_change / scale * missed;
    }

    /// The change after which the error is to vanish; none where changes have shown no effect.
    pub fn solve(&self, y: f64) -> Option<f64> {
        let [own, effect] = self.theta;
        let change = -own * y / effect;
        (effect.abs() > 1e-9 && change.is_finite()).then_some(change)
    }

    /// F, for those who look at what it knows: its diagonal, and what is beside that.
    pub fn gain(&self) -> ([f64; 2], f64) {
        ([self.gain[0], self.gain[2]], self.gain[1])
    }
}
