//! How often tasks arrive, by counts of a few each.
//!
//! In a control interval of half a minute few tasks arrive, and their number is as much chance as rate: of four, two more or less are nothing. But when the rate has doubled, waiting
//! for certainty fills the queue. So all answers to "since when has it been this rate?" are kept with how likely they are by what was counted (Adams and MacKay, Bayesian online changepoint detection,
//! 2007): arrivals at a constant rate are Poisson, what is known of a rate from counts is a gamma distribution, and what comes next is negative binomial in closed form.
//!
//! ```text
//! p(n in t | a tasks in b seconds before) = G(a+n) / (G(a) n!)  (b/(b+t))^a  (t/(b+t))^n
//! ```

/// A time since which the rate may have been the same.
pub use ostler_model::FilesSpan as Span;

/// A rate that holds for a while, then is another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rate {
    /// Tasks that ever arrived.
    pub tasks: f64,
    /// The time in which they did, s.
    pub seconds: f64,
    /// Since when it may have been as it is now; the likelihoods' sum is 1.
    pub spans: Vec<Span>,
}

/// How long rates are taken to hold, s: neither by the minute nor by the day. A change that is beyond doubt is seen at once, whatever this is.
const HOLDS: f64 = 900.0;
/// Times that are no more likely than this are forgotten, and of more than so many the least likely.
const UNLIKELY: f64 = 1e-6;
const SPANS_MAX: usize = 32;
/// What a rate is known to be before anything is counted: the mean of all, as if from so many tasks.
const PRIOR: f64 = 1.0;

impl Rate {
    /// After so many tasks in so many seconds: tasks a second, as far as is known.
    pub fn see(&mut self, tasks: f64, seconds: f64) -> f64 {
        let fine = |figure: f64| (0.0..=1e12).contains(&figure);
        if !fine(tasks) || !fine(seconds) || seconds <= 0.0 {
            return self.now();
        }
        self.tasks += tasks;
        self.seconds += seconds;
        let changes = (seconds / HOLDS).min(0.5);
        let prior = self.prior();
        let orders = libm::lgamma(tasks + 1.0);
        let weighed = |known: (f64, f64), likelihood: f64| {
            libm::log(likelihood) + predicts(known, tasks, orders, seconds)
        };
        let likelihood = if self.spans.is_empty() { 1.0 } else { changes };
        let spans = &mut self.spans;
        for span in &mut *spans {
            let known = (prior.0 + span.tasks, prior.1 + span.seconds);
            *span = Span {
                tasks: span.tasks + tasks,
                seconds: span.seconds + seconds,
                likelihood: weighed(known, span.likelihood * (1.0 - changes)),
            };
        }
        spans.push(Span {
            tasks,
            seconds,
            likelihood: weighed(prior, likelihood),
        });
        // Logarithms until here: counts that nothing explains leave no digits otherwise.
        let most = spans
            .iter()
            .fold(f64::NEG_INFINITY, |most, span| most.max(span.likelihood));
        for span in &mut *spans {
            span.likelihood = libm::exp(span.likelihood - most);
        }
        spans.retain(|span| span.likelihood > UNLIKELY);
        while spans.len() > SPANS_MAX {
            let least = (0..spans.len())
                .min_by(|a, b| spans[*a].likelihood.total_cmp(&spans[*b].likelihood));
            spans.remove(least.unwrap_or(0));
        }
        let sum: f64 = spans.iter().map(|span| span.likelihood).sum();
        for span in spans {
            span.likelihood /= sum;
        }
        self.now()
    }

    /// Tasks a second, as far as is known.
    pub fn now(&self) -> f64 {
        let prior = self.prior();
        let of = |span: &Span| span.likelihood * (prior.0 + span.tasks) / (prior.1 + span.seconds);
        self.spans.iter().map(of).sum()
    }

    fn prior(&self) -> (f64, f64) {
        let mean = (self.tasks + 0.5) / self.seconds.max(1e-9);
        (PRIOR, PRIOR / mean)
    }
}

/// The logarithm of G(a+n) / G(a). Where nothing was counted before, it is that of the orders.
fn ways(shape: f64, tasks: f64, orders: f64) -> f64 {
    if shape.to_bits() == PRIOR.to_bits() {
        return orders;
    }
    libm::lgamma(shape + tasks) - libm::lgamma(shape)
}

/// The logarithm of how likely `tasks` are in so many seconds, by what is known: a gamma distribution's shape and rate. `orders` is the logarithm of how many orders
/// they can come in, which is the same whatever is known.
fn predicts((shape, rate): (f64, f64), tasks: f64, orders: f64, seconds: f64) -> f64 {
    let both = rate + seconds;
    ways(shape, tasks, orders) - orders
        + shape * libm::log(rate / both)
        + tasks * libm::log(seconds / both)
}
