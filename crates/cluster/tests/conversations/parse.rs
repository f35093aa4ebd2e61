//! Arguments of commands.

use goldenscript::{Argument, Command};
use std::str::FromStr;
use std::time::Duration;

/// Arguments of a command, consumed one after the other. An unused one is an error.
pub(crate) struct Arguments {
    positional: Vec<String>,
    named: Vec<(String, String)>,
}

impl Arguments {
    pub(crate) fn of(command: &Command) -> Self {
        let mut arguments = Self { positional: Vec::new(), named: Vec::new() };
        for argument in &command.args {
            match argument {
                Argument::KeyValue(name, value) => arguments.named.push((name.clone(), value.clone())),
                Argument::Positional(value) => arguments.positional.push(value.clone()),
                _ => unreachable!("there are two kinds of arguments"),
            }
        }
        arguments
    }

    /// The next positional argument.
    pub(crate) fn next(&mut self, what: &str) -> Result<String, String> {
        self.try_next().ok_or_else(|| format!("{what} is missing"))
    }

    pub(crate) fn try_next(&mut self) -> Option<String> {
        (!self.positional.is_empty()).then(|| self.positional.remove(0))
    }

    /// Takes the next positional argument if it is this word.
    pub(crate) fn takes(&mut self, word: &str) -> bool {
        let at = self.positional.iter().position(|argument| argument == word);
        at.is_some_and(|at| {
            self.positional.remove(at);
            true
        })
    }

    /// The next node.
    pub(crate) fn node(&mut self) -> Result<usize, String> {
        node(&self.next("a node")?)
    }

    /// All nodes that follow.
    pub(crate) fn nodes(&mut self) -> Result<Vec<usize>, String> {
        let count = self.positional.iter().take_while(|word| node(word).is_ok()).count();
        self.positional.drain(..count).map(|word| node(&word)).collect()
    }

    /// The next duration.
    pub(crate) fn duration(&mut self) -> Result<Duration, String> {
        duration(&self.next("a duration")?)
    }

    /// The value of `name=value`.
    pub(crate) fn named(&mut self, name: &str) -> Option<String> {
        let at = self.named.iter().position(|(known, _)| known == name)?;
        Some(self.named.remove(at).1)
    }

    pub(crate) fn number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let value = self.named(name);
        value.map(|value| value.parse().map_err(|_| format!("{name}={value} is no number"))).transpose()
    }

    /// The first pair `key=value` whose name is no option.
    pub(crate) fn pair(&mut self) -> Option<(String, String)> {
        (!self.named.is_empty()).then(|| self.named.remove(0))
    }

    pub(crate) fn end(self) -> Result<(), String> {
        let named = self.named.into_iter().map(|(name, value)| format!("{name}={value}"));
        match self.positional.into_iter().chain(named).next() {
            Some(argument) => Err(format!("{argument} is not understood")),
            None => Ok(()),
        }
    }
}

/// The index of the host of a node: `n1` is the first.
pub(crate) fn node(word: &str) -> Result<usize, String> {
    let number: Option<usize> = word.strip_prefix('n').and_then(|number| number.parse().ok());
    number.and_then(|number| number.checked_sub(1)).ok_or_else(|| format!("{word} is no node"))
}

/// A duration with its unit, such as `200ms`, `1.5s`, `10m`, `2h` or `3d`.
pub(crate) fn duration(word: &str) -> Result<Duration, String> {
    let digits = word.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let unit = match unit {
        "us" => 0.000_001,
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(format!("{word} is no duration: it needs a unit, as 200ms or 3d")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{word} is no duration"))?;
    Ok(Duration::from_secs_f64(number * unit))
}
