//! Prompt templates over CSV columns: `Classify: {{text}}`. Nothing but columns can stand between the braces.

use anyhow::bail;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Column(usize),
}

impl Template {
    /// Parses `source` against the header's column names.
    ///
    /// # Errors
    /// Unclosed braces; a column the header does not have; no column at all.
    pub fn parse(source: &str, header: &csv::StringRecord) -> anyhow::Result<Self> {
        let mut parts = Vec::new();
        let mut rest = source;
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((name, after)) = after.split_once("}}") else {
                bail!("--template: `{{{{` without `}}}}` after `{before}`");
            };
            let name = name.trim();
            let Some(idx) = header.iter().position(|column| column == name) else {
                let known: Vec<&str> = header.iter().collect();
                bail!("--template: the file has no column `{name}`; it has {}", known.join(", "));
            };
            if header.iter().filter(|column| *column == name).count() > 1 {
                bail!("--template: the file has more than one column `{name}`; give them different names");
            }
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Column(idx));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        if !parts.iter().any(|part| matches!(part, Part::Column(_))) {
            bail!("--template names no column: write one as {{{{name}}}}");
        }
        Ok(Self { parts })
    }

    /// The prompt for a record.
    pub fn render(&self, record: &csv::StringRecord) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Column(idx) => record.get(*idx).unwrap_or_default(),
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> csv::StringRecord {
        csv::StringRecord::from(vec!["id", "text", "lang"])
    }

    #[test]
    fn columns_are_filled_in_and_braces_in_data_stay() {
        let template = Template::parse("[{{ lang }}] {{text}}: {x}", &header()).unwrap();
        let record = csv::StringRecord::from(vec!["1", "a {{lang}} b", "en"]);
        assert_eq!(template.render(&record), "[en] a {{lang}} b: {x}");
    }

    #[test]
    fn mistakes_are_named() {
        let says = |source: &str| Template::parse(source, &header()).unwrap_err().to_string();
        assert!(says("{{label}}").contains("no column `label`"));
        assert!(says("{{text").contains("without `}}`"));
        assert!(says("plain").contains("names no column"));
    }
}
