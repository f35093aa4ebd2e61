//! Pages that need no network: each is one file, readable in light and dark, wide and narrow, and all look alike.
//!
//! **Promise.** What comes from outside is shown, never obeyed, if it went through [`escape`] or [`json`].

#![warn(missing_docs)]

const SHELL: &str = include_str!("shell.html");
const LOOK: &str = include_str!("look.css");

/// A page with this title. `style` comes behind the common one; `body` is HTML.
pub fn page(title: &str, style: &str, body: &str) -> String {
    let parts = [
        ("title", escape(title)),
        ("look", LOOK.trim_end().to_owned()),
        ("style", style.trim_end().to_owned()),
        ("body", body.trim_end().to_owned()),
    ];
    fill(SHELL, &parts)
}

/// Puts the parts in the places of a template, `{{name}}` each. What was put in is not looked at again.
///
/// # Panics
/// When a place is not closed or has no part.
pub fn fill(template: &str, parts: &[(&str, String)]) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after.split_once("}}").expect("a place is closed");
        let (_, part) = parts.iter().find(|(known, _)| *known == name).expect("a place has its part");
        out += before;
        out += part;
        rest = behind;
    }
    out + rest
}

/// Text as it may stand in HTML or SVG, between elements and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON as it may stand in a script element: nothing in a string may end it.
pub fn json(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_not_looked_at_again() {
        let filled = fill("<{{a}}|{{b}}>", &[("a", "{{b}}".to_owned()), ("b", "1".to_owned())]);
        assert_eq!(filled, "<{{b}}|1>");
    }

    #[test]
    fn titles_and_strings_cannot_end_their_element() {
        let made = page("</title>&\"", "b { color: red; }\n", &json(r#"["</script>"]"#));
        assert!(made.contains("<title>&lt;/title&gt;&amp;&quot;</title>"), "{made}");
        assert!(made.contains(r#"["\u003c/script>"]"#), "{made}");
        assert!(made.contains("\nb { color: red; }\n</style>"), "{made}");
    }
}
