//! Table that can be rendered as Markdown and as HTML.

use super::page::escape;

/// Rows of text with headings. The first column names the group of a row; it is empty if the group
/// is that of the row above.
#[derive(Clone, Debug)]
pub struct Sheet {
    headings: Vec<Heading>,
    rows: Vec<Vec<String>>,
}

#[derive(Clone, Debug)]
struct Heading {
    name: String,
    is_text: bool,
}

impl Sheet {
    /// Creates a table without rows: text columns, then number columns, then text columns again.
    pub fn new(text: &[&str], numbers: &[&str], last: &[&str]) -> Self {
        let heading = |is_text| move |name: &&str| Heading { name: (*name).to_owned(), is_text };
        let headings = text.iter().map(heading(true)).chain(numbers.iter().map(heading(false)));
        Self { headings: headings.chain(last.iter().map(heading(true))).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells differs from the number of headings.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.headings.len(), "a cell for each heading");
        self.rows.push(cells);
    }

    /// Renders the table as Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut out = line(self.headings.iter().map(|heading| heading.name.clone()).collect());
        out += &line(self.headings.iter().map(|heading| heading.rule().to_owned()).collect());
        for row in &self.rows {
            out += &line(row.iter().map(|cell| cell.replace('|', "\\|")).collect());
        }
        out
    }

    /// Renders the table as an HTML element.
    pub fn html(&self) -> String {
        let names = self.headings.iter().map(|heading| heading.cell("th", 1, &heading.name));
        let mut out = format!(
            "<table class=\"numbers sheet\">\n<thead><tr>{}</tr></thead>\n<tbody>\n",
            names.collect::<String>()
        );
        for (number, row) in self.rows.iter().enumerate() {
            let is_first = !row[0].is_empty();
            let span = 1 + self.rows[number + 1..].iter().take_while(|next| next[0].is_empty()).count();
            let class = if is_first { " class=\"first\"" } else { "" };
            let below = &self.rows[number + 1..number + span];
            let cell = |(column, (heading, text)): (usize, (&Heading, &String))| match heading.is_text {
                // The cell of the group's first row spans this row.
                true if !is_first && text.is_empty() => String::new(),
                true if is_first && below.iter().all(|row| row[column].is_empty()) => {
                    heading.cell("td", span, text)
                }
                _ => heading.cell("td", 1, text),
            };
            let cells: String = self.headings.iter().zip(row).enumerate().map(cell).collect();
            out += &format!("<tr{class}>{cells}</tr>\n");
        }
        out + "</tbody>\n</table>"
    }
}

impl Heading {
    fn cell(&self, element: &str, span: usize, text: &str) -> String {
        let class = if self.is_text { " class=\"left\"" } else { "" };
        let span = if span > 1 { format!(" rowspan=\"{span}\"") } else { String::new() };
        format!("<{element}{class}{span}>{}</{element}>", escape(text))
    }

    const fn rule(&self) -> &'static str {
        if self.is_text { "---" } else { "--:" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_is_the_same_in_both_forms() {
        let mut sheet = Sheet::new(&["load"], &["p50"], &["others"]);
        sheet.row(["get", "1 ms", "a|b <c>"].map(str::to_owned).to_vec());
        sheet.row(["", "2 ms", ""].map(str::to_owned).to_vec());
        assert_eq!(
            sheet.markdown(),
            "| load | p50 | others |\n| --- | --: | --- |\n| get | 1 ms | a\\|b <c> |\n|  | 2 ms |  |\n"
        );
        let html = sheet.html();
        let first = "<tr class=\"first\"><td class=\"left\" rowspan=\"2\">get</td><td>1 ms</td>";
        assert!(html.contains(first) && html.contains("a|b &lt;c&gt;"), "{html}");
        assert!(html.contains("<tr><td>2 ms</td></tr>"), "{html}");
    }
}
