//! Sentences about the default number of replicas, `default_from`, for the log and the status.
//!
//! The layout record has it. The flag counts at the first start only, and a process uses the value
//! of the record that it started with.

/// Largest value that is not reported. Larger ones are rarely intended.
const COMMON_MAX: u8 = 5;

/// Warns about more replicas than most clusters need.
pub(crate) fn of_many(own: u8) -> Option<String> {
    (own > COMMON_MAX).then(|| {
        format!(
            "default_from is {own}: a key has {own} replicas unless a request says otherwise, and 3 are enough for most \
             clusters."
        )
    })
}

/// Warns about a flag that differs from the layout record.
pub(crate) fn of_flag(flag: Option<u8>, recorded: u8) -> Option<String> {
    let flag = flag.filter(|flag| *flag != recorded)?;
    Some(format!(
        "--default-from is {flag}, and the layout record has default_from {recorded}: the record counts. Leave the flag out."
    ))
}

/// Warns that the process uses another value than the record that it has adopted.
pub(crate) fn of_process(own: u8, recorded: u8) -> Option<String> {
    (own != recorded).then(|| {
        format!(
            "default_from is {own} on this node until it is restarted, and {recorded} in the layout record that it has \
             adopted: the record counts. Restart the node."
        )
    })
}

/// Warns that the node at `url` uses another value than this one: the quorums of their writes and
/// reads may not overlap.
pub(crate) fn of_peer(own: u8, url: &str, theirs: Option<u8>) -> Option<String> {
    let theirs = theirs.filter(|theirs| *theirs != own)?;
    Some(format!(
        "default_from is {theirs} on {url} and {own} on this node: a read through one may miss what was written through the \
         other. docs/operations.md says how all nodes get the same value."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_said_with_both_values_and_none_without_a_difference() {
        assert_eq!((of_many(5), of_flag(None, 3), of_flag(Some(3), 3)), (None, None, None));
        assert_eq!((of_process(3, 3), of_peer(3, "http://b:1", None)), (None, None));
        assert_eq!(of_peer(3, "http://b:1", Some(3)), None);
        let told = of_many(6).expect("more than 5");
        assert!(told.contains("6 replicas") && told.contains("3 are enough"), "{told}");
        let told = of_flag(Some(9), 2).expect("they differ");
        assert!(told.contains("--default-from is 9, and the layout record has default_from 2"), "{told}");
        let told = of_process(2, 3).expect("they differ");
        assert!(told.contains("default_from is 2") && told.contains("Restart the node"), "{told}");
        let told = of_peer(3, "http://b:1", Some(5)).expect("they differ");
        assert!(told.contains("default_from is 5 on http://b:1 and 3 on this node"), "{told}");
        assert!(!told.contains("--default-from"), "the flag has no effect any more: {told}");
    }
}
