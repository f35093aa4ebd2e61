//! Routes to the node: directly, and through proxies.

use super::process::{ProcessResult, ServiceProcess, free_address, status_of, until};
use super::{Directories, TIMEOUT, find_program};
use std::net::SocketAddr;
use std::process::Command;

/// A route to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Direct,
    Nginx,
    Haproxy,
}

/// A running proxy.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    _service: ServiceProcess,
}

impl Route {
    pub(crate) const ALL: [Self; 3] = [Self::Direct, Self::Nginx, Self::Haproxy];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    /// Checks that the route's proxy is installed.
    pub(crate) fn find(self) -> ProcessResult {
        match self {
            Self::Direct => Ok(()),
            Self::Nginx | Self::Haproxy => find_program(self.name()).map(drop),
        }
    }

    /// Starts the route's proxy, if it has one, in front of the node.
    pub(crate) fn start(self, directories: &Directories, node: SocketAddr) -> ProcessResult<Option<Proxy>> {
        let template = match self {
            Self::Direct => return Ok(None),
            Self::Nginx => "nginx.conf",
            Self::Haproxy => "haproxy.cfg",
        };
        let address = free_address()?;
        let template = directories.sources.join(template);
        let text =
            std::fs::read_to_string(&template).map_err(|error| format!("{}: {error}", template.display()))?;
        let text = text.replace("@LISTEN@", &address.to_string()).replace("@NODE@", &node.to_string());
        let text = text.replace("@DIR@", &directories.dir.display().to_string());
        let file = directories.dir.join(self.name());
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(find_program(self.name())?);
        match self {
            Self::Nginx => {
                command.arg("-c").arg(&file).arg("-p").arg(&directories.dir).args(["-e", "stderr"])
            }
            Self::Direct | Self::Haproxy => command.arg("-db").arg("-f").arg(&file),
        };
        let service = ServiceProcess::start(&mut command)?;
        let passes = || status_of(address, "/v0/ready").is_some_and(|code| code == 200);
        until(&format!("{} passes requests on", self.name()), TIMEOUT, passes)?;
        Ok(Some(Proxy { address, _service: service }))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The part of a configuration that the operators' page shows, without its indentation.
    fn shown_part(file: &str) -> String {
        let text = std::fs::read_to_string(root().join("bench/clients").join(file)).expect("it is there");
        let lines = text.lines().skip_while(|line| !line.contains("BEGIN docs/operations.md")).skip(1);
        let lines: Vec<&str> = lines.take_while(|line| !line.contains("END docs/operations.md")).collect();
        let indent = lines[0].len() - lines[0].trim_start().len();
        let text: String =
            lines.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or(""))).collect();
        text.replace("@LISTEN@", "10.0.0.10:8080").replace("@NODE@", "10.0.0.1:8080")
    }

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    #[test]
    fn operators_are_shown_the_configurations_that_are_tested() {
        let page = std::fs::read_to_string(root().join("docs/operations.md")).expect("it is there");
        for file in ["nginx.conf", "haproxy.cfg"] {
            let part = shown_part(file);
            assert!(page.contains(&part), "docs/operations.md lacks this part of {file}:\n{part}");
        }
    }
}
