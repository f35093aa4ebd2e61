#!/usr/bin/env bash
# The conversation of README.md with HTTPie.
set -euo pipefail
url=$1 prefix=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "httpie: $step: $*" >&2; exit 1; }
expect() { [ "$1" = "$2" ] || fail "got '$1', expected '$2'"; }
# Prints the status; the body is in $work/body, the head in $work/head.
call() {
    http --ignore-stdin --timeout=30 --headers "$@" >"$work/head"
    awk '$1 ~ /^HTTP\// { print $2 }' "$work/head"
}
# The same of a GET, with the body.
fetch() {
    http --ignore-stdin --timeout=30 --body --output "$work/body" GET "$@"
}
header() { tr -d '\r' <"$work/head" | awk -v name="$1" 'tolower($1) == tolower(name) ":" { print $2 }'; }
entity="$url/v0/entity?id=$prefix"

step=put
expect "$(call --raw 'a quiet morning' PUT "$entity/diary")" 201
etag=$(header etag)
[ -n "$etag" ] || fail 'there is no ETag'
echo "ok $step"

step=get
expect "$(call GET "$entity/diary")" 200
expect "$(header etag)" "$etag"
fetch "$entity/diary"
expect "$(cat "$work/body")" 'a quiet morning'
echo "ok $step"

step=head
expect "$(call HEAD "$entity/diary")" 200
expect "$(header content-length)" 15
echo "ok $step"

step=get_unchanged
expect "$(call GET "$entity/diary" "If-None-Match:$etag")" 304
echo "ok $step"

step=put_conditional
expect "$(call --raw x PUT "$entity/diary" "If-Match:$etag")" 501
echo "ok $step"

step=part
expect "$(call GET "$entity/diary" 'Range:bytes=2-6')" 206
fetch "$entity/diary" 'Range:bytes=2-6'
expect "$(cat "$work/body")" quiet
echo "ok $step"

step=delete
expect "$(call DELETE "$entity/diary")" 202
echo "ok $step"

step=missing
expect "$(call GET "$entity/diary")" 404
expect "$(header content-type)" application/problem+json
echo "ok $step"

step=ttl
expect "$(call --raw gone PUT "$entity/note" ttl==1000)" 201
status=$(call GET "$entity/note")
if [ "$status" = 200 ]; then [ -n "$(header veche-expires-at)" ] || fail 'there is no Veche-Expires-At'; fi
for _ in $(seq 100); do
    status=$(call GET "$entity/note")
    [ "$status" = 404 ] && break
    sleep 0.1
done
expect "$status" 404
echo "ok $step"

step=large
head -c 4194304 /dev/urandom >"$work/large"
expect "$(http --timeout=30 --headers PUT "$entity/large" <"$work/large" | awk '$1 ~ /^HTTP\// { print $2 }')" 201
fetch "$entity/large"
cmp -s "$work/large" "$work/body" || fail 'the bytes differ'
echo "ok $step"

step=long_key
long=$(printf "%$((8192 - ${#prefix} - 1))s" | sed 's/ /%25/g')
expect "$(call --raw long PUT "$entity/$long")" 201
fetch "$entity/$long"
expect "$(cat "$work/body")" long
echo "ok $step"

step=expect
head -c 1048576 "$work/large" >"$work/part"
expect "$(http --timeout=30 --headers PUT "$entity/expect" Expect:100-continue <"$work/part" | awk '$1 ~ /^HTTP\// { status = $2 } END { print status }')" 201
echo "ok $step"

step=batch
{
    printf '{"key":"%s/batch/a","value":"1"}\n' "$prefix"
    printf '{"key":"%s/batch/b","value":"2","ttl":99999999999999}\n' "$prefix"
    printf '{"key":"%s/batch/c","value":"3"}\n' "$prefix"
} | http --timeout=30 --body --pretty=none POST "$url/v0/entities" results==errors Content-Type:application/x-ndjson >"$work/body"
grep -q '^{"entry":2,"status":400,' "$work/body" || fail "$(cat "$work/body")"
grep -qx '{"entries":3,"failed":1}' "$work/body" || fail "$(cat "$work/body")"
echo "ok $step"

step=range_lines
fetch "$url/v0/entities" "prefix==$prefix/batch/"
expect "$(cat "$work/body")" "$(printf '%s/batch/a\n1%s/batch/c\n3' "$prefix" "$prefix")"
echo "ok $step"

step=range_ndjson
fetch "$url/v0/entities" "prefix==$prefix/batch/" Accept:application/x-ndjson
expect "$(sed 's/,"version".*//' "$work/body")" "$(printf '{"key":"%s/batch/a","value":"1"\n{"key":"%s/batch/c","value":"3"' "$prefix" "$prefix")"
echo "ok $step"

step=options
expect "$(call OPTIONS "$url/v0/entity")" 204
[ -n "$(header allow)" ] || fail 'there is no Allow'
echo "ok $step"

echo 'cannot keep_alive: each request is a process of its own'
