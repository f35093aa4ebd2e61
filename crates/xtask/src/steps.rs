//! Commands that run one after the other, and their results.

use std::process::{Command, ExitCode};

/// One command, with additional environment variables.
#[derive(Clone, Debug)]
pub(crate) struct ChoreStep {
    pub(crate) command: String,
    pub(crate) env: Vec<(&'static str, String)>,
}

impl ChoreStep {
    pub(crate) fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), env: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// The shell command that repeats the step.
    fn line(&self) -> String {
        let quoted = |value: &str| {
            if value.contains(' ') { format!("'{value}'") } else { value.to_owned() }
        };
        let env = self.env.iter().map(|(name, value)| format!("{name}={} ", quoted(value)));
        env.chain([self.command.clone()]).collect()
    }

    fn succeeds(&self) -> bool {
        let line = self.line();
        eprintln!("+ {line}");
        let mut words = self.command.split(' ');
        let program = words.next().expect("a command has a program");
        let env = self.env.iter().map(|(name, value)| (name, value));
        match Command::new(program).args(words).envs(env).status() {
            Ok(status) if status.success() => true,
            Ok(status) => {
                eprintln!("failed ({status}): {line}");
                false
            }
            Err(error) => {
                eprintln!("cannot run {program}: {error}");
                false
            }
        }
    }
}

/// Runs all steps, also after failures, and lists the failed steps at the end.
pub(crate) fn run_all(steps: &[ChoreStep]) -> ExitCode {
    let failed: Vec<String> = steps.iter().filter(|step| !step.succeeds()).map(ChoreStep::line).collect();
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("{} of {} steps failed:\n  {}", failed.len(), steps.len(), failed.join("\n  "));
    ExitCode::FAILURE
}
