//! A sentence about a `--cluster` list that differs from the members of the layout record.
//!
//! The record counts. The list only helps to find members, so an old list does no harm. An operator
//! may also have given a node the list of a cluster that it does not belong to.

use cluster::LayoutRecord;

/// Warns about a list that names other nodes than the members of `record`. `listed` has each node
/// once. It is empty if the operator gave none.
pub(crate) fn warning(listed: &[String], record: &LayoutRecord) -> Option<String> {
    let sorted = |urls: &mut dyn Iterator<Item = &String>| {
        let mut urls: Vec<String> = urls.cloned().collect();
        urls.sort_unstable();
        urls
    };
    let listed = sorted(&mut listed.iter());
    // The record of a node on its own has no address.
    let members = sorted(&mut record.members.iter().map(|member| &member.url).filter(|url| !url.is_empty()));
    if listed.is_empty() || listed == members || (members.is_empty() && listed.len() == 1) {
        return None;
    }
    let list = listed.join(",");
    let to_move = "start it with another --data, which is empty: this directory stays with its cluster.";
    if members.is_empty() {
        return Some(format!(
            "--cluster lists {list}, and by the layout record this node is a cluster of its own: the record counts. If the \
             node is to belong to the listed cluster, {to_move}"
        ));
    }
    let harmless = format!(
        "--cluster lists {list}, and the layout record has the members {}: the record counts, and the list only helps to find \
         them.",
        members.join(",")
    );
    let has_common = listed.iter().any(|url| members.contains(url));
    Some(match has_common {
        true => format!("{harmless} Update the list at leisure, for the next start."),
        false => format!(
            "{harmless} If all members have moved to the listed addresses, nothing is to be done. If the list is that of \
             another cluster, to which this node is to belong, {to_move}"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClusterOrigin;
    use stdx::NodeTag;

    fn urls(list: &str) -> Vec<String> {
        list.split(',').filter(|url| !url.is_empty()).map(str::to_owned).collect()
    }

    fn warning_of(listed: &str, members: &str) -> Option<String> {
        let nodes = urls(members);
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 1, tag: NodeTag(7) };
        warning(&urls(listed), &LayoutRecord::first(origin).expect("a cluster"))
    }

    #[test]
    fn a_list_of_the_members_in_any_order_and_no_list_are_not_warned_of() {
        for (listed, members) in [
            ("", "http://a:1,http://b:1"),
            ("http://b:1,http://a:1", "http://a:1,http://b:1"),
            ("http://a:1", ""),
            ("", ""),
        ] {
            assert_eq!(warning_of(listed, members), None, "{listed}");
        }
    }

    #[test]
    fn an_old_list_is_harmless_and_only_the_list_of_other_nodes_may_be_meant_for_another_directory() {
        for listed in ["http://a:1,http://old:1", "http://a:1", "http://a:1,http://b:1,http://c:1"] {
            let told = warning_of(listed, "http://a:1,http://b:1").expect("it differs");
            assert!(told.contains(&format!("--cluster lists {listed}")), "{told}");
            assert!(told.contains("has the members http://a:1,http://b:1: the record counts"), "{told}");
            assert!(told.contains("Update the list at leisure") && !told.contains("--data"), "{told}");
        }
        let told = warning_of("http://x:1,http://y:1", "http://a:1,http://b:1").expect("it differs");
        assert!(told.contains("nothing is to be done"), "{told}");
        assert!(told.contains("start it with another --data"), "{told}");
        let told = warning_of("http://a:1,http://b:1", "").expect("it differs");
        assert!(told.contains("a cluster of its own") && told.contains("another --data"), "{told}");
    }
}
