//! A figure: what the paper has, and how we come by ours.

use anyhow::{Context as _, Result, bail};
use bench_harness::Line;
use serde::Deserialize;

/// A figure of a paper.
pub struct Figure {
    /// Its folder.
    pub name: &'static str,
    /// What the paper has.
    pub paper: Paper,
    /// What we have.
    pub cases: fn(Run) -> Result<Vec<Case>>,
}

/// How a figure is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Tiny.
    pub quick: bool,
}

/// `paper.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// What it shows.
    pub title: String,
    /// Which paper, which figure.
    pub source: String,
    /// Its cases.
    #[serde(default)]
    pub case: Vec<Told>,
}

/// What the paper tells of a case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// Its name.
    pub name: String,
    /// Of ours and the baseline's figures.
    pub unit: String,
    /// What the paper has for the ratio of ours to the baseline's, if it tells one.
    pub ratio: Option<f64>,
    /// What it has for ours, if it tells that and no ratio.
    pub value: Option<f64>,
    /// Where it says so.
    pub place: String,
}

/// What we have for a case: a figure for each run, of each side.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Its name, as in `paper.toml`.
    pub name: String,
    /// Ours.
    pub ours: Vec<f64>,
    /// The baseline's.
    pub baseline: Vec<f64>,
}

impl Figure {
    /// Reads what the paper has.
    pub fn new(
        name: &'static str,
        paper: &str,
        cases: fn(Run) -> Result<Vec<Case>>,
    ) -> Result<Figure> {
        let paper: Paper =
            toml::from_str(paper).with_context(|| format!("bench/paper/{name}/paper.toml"))?;
        for told in &paper.case {
            if told.ratio.is_some() && told.value.is_some() {
                bail!(
                    "{name}: `{}` has both a ratio and a value; keep the ratio",
                    told.name
                );
            }
            if told.place.is_empty() || told.unit.is_empty() {
                bail!(
                    "{name}: say of `{}` where it is told, and in what unit",
                    told.name
                );
            }
        }
        Ok(Figure { name, paper, cases })
    }

    /// All its cases: those that the paper names, in its order, and no others.
    pub fn draw(&self, run: Run) -> Result<Vec<Line>> {
        let mut cases = (self.cases)(run).with_context(|| format!("figure {}", self.name))?;
        let mut lines = Vec::with_capacity(self.paper.case.len());
        for told in &self.paper.case {
            let Some(at) = cases.iter().position(|case| case.name == told.name) else {
                bail!("{}: nothing came of `{}`", self.name, told.name);
            };
            let case = cases.swap_remove(at);
            let bench = format!("paper/{}", self.name);
            let mut line = Line::of(&bench, &case.name, &told.unit, case.ours, case.baseline);
            line.paper = told.ratio.or(told.value);
            lines.push(line);
        }
        if let Some(case) = cases.first() {
            bail!("{}: `{}` is not in paper.toml", self.name, case.name);
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = "title = \"t\"\nsource = \"s\"\n[[case]]\nname = \"a\"\nunit = \"x\"\nratio = 4.2\nplace = \"section 1\"\n";

    fn case(name: &str) -> Case {
        Case {
            name: name.to_owned(),
            ours: vec![2.0],
            baseline: vec![1.0],
        }
    }

    const RUN: Run = Run { quick: true };

    #[test]
    fn a_case_is_drawn_beside_what_the_paper_has() {
        let figure = Figure::new("f", PAPER, |_| Ok(vec![case("a")])).unwrap();
        let lines = figure.draw(RUN).unwrap();
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].ratio, lines[0].paper), (Some(2.0), Some(4.2)));
        assert_eq!(lines[0].bench, "paper/f");
    }

    #[test]
    fn cases_are_those_of_the_paper_and_no_others() {
        let none = Figure::new("f", PAPER, |_| Ok(Vec::new())).unwrap();
        assert!(
            none.draw(RUN)
                .unwrap_err()
                .to_string()
                .contains("nothing came of `a`")
        );
        let more = Figure::new("f", PAPER, |_| Ok(vec![case("a"), case("b")])).unwrap();
        assert!(
            more.draw(RUN)
                .unwrap_err()
                .to_string()
                .contains("`b` is not in paper.toml")
        );
        assert!(
            Figure::new(
                "f",
                &PAPER.replace("ratio = 4.2", "ratio = 4.2\nvalue = 1.0"),
                |_| Ok(Vec::new())
            )
            .is_err()
        );
        assert!(Figure::new("f", &PAPER.replace("section 1", ""), |_| Ok(Vec::new())).is_err());
    }
}
