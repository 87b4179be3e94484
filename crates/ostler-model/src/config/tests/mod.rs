//! Properties of configurations, one example of each refusal, and the example that users begin with.

mod drawn;
mod example;
mod refusals;
