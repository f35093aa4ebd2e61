//! HTML pages of one file each, without network access, in one style for light and dark mode and
//! for any width.
//!
//! **Promise.** Untrusted text that passes through [`escape`] or [`escape_json`] is displayed, and
//! never interpreted as markup or script.

const SHELL: &str = include_str!("shell.html");
const LOOK: &str = include_str!("look.css");

/// Returns a page with this title. `style` follows the common style sheet; `body` is HTML.
pub fn document(title: &str, style: &str, body: &str) -> String {
    let parts = [
        ("title", escape(title)),
        ("look", LOOK.trim_end().to_owned()),
        ("style", style.trim_end().to_owned()),
        ("body", body.trim_end().to_owned()),
    ];
    fill(SHELL, &parts)
}

/// Replaces each placeholder `{{name}}` of a template by its part. Placeholders in the parts are
/// not replaced.
///
/// # Panics
/// If a placeholder is not closed or has no part.
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

/// Escapes text for HTML and SVG, in elements and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Escapes JSON for a script element, so that no string in it can end the element.
pub fn escape_json(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substituted_text_is_not_expanded_again() {
        let filled = fill("<{{a}}|{{b}}>", &[("a", "{{b}}".to_owned()), ("b", "1".to_owned())]);
        assert_eq!(filled, "<{{b}}|1>");
    }

    #[test]
    fn titles_and_strings_cannot_end_their_element() {
        let made = document("</title>&\"", "b { color: red; }\n", &escape_json(r#"["</script>"]"#));
        assert!(made.contains("<title>&lt;/title&gt;&amp;&quot;</title>"), "{made}");
        assert!(made.contains(r#"["\u003c/script>"]"#), "{made}");
        assert!(made.contains("\nb { color: red; }\n</style>"), "{made}");
    }
}
