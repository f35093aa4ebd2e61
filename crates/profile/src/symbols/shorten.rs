//! Shortened function names for pictures.

/// Removes from a function's name the parts that distinguish its instances: type arguments, and the
/// trait of an implementation. `<hyper::Conn<I, B> as Future>::poll::<T>` becomes
/// `hyper::Conn::poll`.
pub(super) fn shorten(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    while let Some(at) = rest.find('<') {
        let (before, from) = rest.split_at(at);
        out += before;
        let Some((inner, after)) = split_closed(from) else {
            return out + from;
        };
        rest = after;
        let begins_path = !out.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '}' | ']'));
        if begins_path {
            out += &self_type(inner);
        } else if out.ends_with("::") {
            out.truncate(out.len() - "::".len());
        }
    }
    out + rest
}

/// Name for `Type as Trait` in a qualified path: the type, or the trait if the type is only a type
/// parameter.
fn self_type(inner: &str) -> String {
    let Some((own, of_trait)) = split_as(inner) else {
        return shorten(inner);
    };
    let is_parameter = own.len() <= 2 && own.chars().all(|c| c.is_ascii_alphanumeric());
    shorten(if is_parameter { of_trait } else { own })
}

/// Splits at the first ` as ` outside inner brackets.
fn split_as(inner: &str) -> Option<(&str, &str)> {
    const AS: &str = " as ";
    let mut from = 0;
    while let Some(found) = inner[from..].find(AS) {
        let at = from + found;
        if depth(&inner[..at]) == 0 {
            return Some((&inner[..at], &inner[at + AS.len()..]));
        }
        from = at + AS.len();
    }
    None
}

/// Splits `<inner>after` at the closing bracket.
fn split_closed(text: &str) -> Option<(&str, &str)> {
    let ends = text.match_indices('>').map(|(at, _)| at);
    let end = ends.into_iter().find(|at| !text[..*at].ends_with('-') && depth(&text[..=*at]) == 0)?;
    Some((&text[1..end], &text[end + 1..]))
}

/// Number of brackets that are open at the end of `text`. The `>` of an arrow is not a bracket.
fn depth(text: &str) -> i32 {
    let mut depth = 0;
    let mut before = ' ';
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        before = c;
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_function_have_one_name() {
        for (name, short) in [
            ("server::stream::read", "server::stream::read"),
            ("alloc::vec::Vec<T,A>::push", "alloc::vec::Vec::push"),
            ("core::ptr::drop_in_place::<alloc::vec::Vec<u8>>", "core::ptr::drop_in_place"),
            ("<hyper::Conn<I, B> as core::future::Future>::poll::<T>", "hyper::Conn::poll"),
            ("<F as core::ops::FnOnce<()>>::call_once", "core::ops::FnOnce::call_once"),
            ("<alloc::boxed::Box<dyn Fn(u8) -> u8> as Fn<(u8,)>>::call", "alloc::boxed::Box::call"),
            ("<<A as B>::C as D>::e", "B::C::e"),
            ("<[T] as core::slice::Index<usize>>::get", "[T]::get"),
            ("<server::thread::Thread>::run::{closure#0}", "server::thread::Thread::run::{closure#0}"),
            ("a::b::{{closure}}::c<d>", "a::b::{{closure}}::c"),
            ("operator<", "operator<"),
            ("", ""),
        ] {
            assert_eq!(shorten(name), short, "{name}");
        }
    }
}
