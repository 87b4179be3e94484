//! The page around it all: one HTML file that needs nothing else. It carries its own style and a few lines of script for the pointer; its content
//! policy forbids it to load anything.

use crate::node::{Node, el};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("hover.js");

/// A page that needs nothing else, with this title and body.
pub fn page(title: String, body: Node) -> String {
    let head = el("head").children([
        el("meta").attr("charset", "utf-8"),
        el("meta")
            .attr("name", "viewport")
            .attr("content", "width=device-width, initial-scale=1"),
        el("meta")
            .attr("name", "color-scheme")
            .attr("content", "light dark"),
        el("meta")
            .attr("http-equiv", "Content-Security-Policy")
            .attr(
                "content",
                "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
            ),
        el("title").text(title),
        el("style").constant(STYLE),
    ]);
    let body = body
        .child(
            el("div")
                .attr("id", "tip")
                .attr("role", "tooltip")
                .attr("hidden", "hidden"),
        )
        .child(el("script").constant(SCRIPT));
    let mut out = String::with_capacity(256 << 10);
    out.push_str("<!DOCTYPE html>\n");
    el("html")
        .attr("lang", "en")
        .child(head)
        .child(body)
        .write(&mut out);
    out
}

/// A section with its heading.
pub fn section(id: &str, title: &str) -> Node {
    el("section").attr("id", id).child(el("h2").text(title))
}

/// A chart with its frame: the drawing scrolls sideways where it doesn't fit.
pub fn chart(drawing: Node) -> Node {
    el("figure")
        .class("chart")
        .child(el("div").class("scroll").child(drawing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_and_script_need_no_escaping_and_load_nothing() {
        for constant in [STYLE, SCRIPT] {
            assert!(!constant.contains(['<', '&']), "would not be well-formed");
            assert!(
                !constant.contains("url(")
                    && !constant.contains("@import")
                    && !constant.contains("http")
            );
        }
    }
}
