#!/usr/bin/env bash
# The conversation of README.md with GNU Wget.
set -euo pipefail
url=$1 prefix=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "wget: $step: $*" >&2; exit 1; }
expect() { [ "$1" = "$2" ] || fail "got '$1', expected '$2'"; }
# Prints the status. The body is in $work/body, the heads in $work/head. Wget's exit code is less
# specific.
call() {
    rm -f "$work/body"
    wget -q --no-netrc --tries=1 --timeout=30 --content-on-error --server-response -O "$work/body" "$@" 2>"$work/head" || true
    awk '$1 ~ /^HTTP\// { status = $2 } END { print status }' "$work/head"
}
header() { tr -d '\r' <"$work/head" | awk -v name="$1" 'tolower($1) == tolower(name) ":" { value = $2 } END { print value }'; }
entity="$url/v0/entity?id=$prefix"

step=put
expect "$(call --method=PUT --body-data='a quiet morning' "$entity/diary")" 201
etag=$(header etag)
[ -n "$etag" ] || fail 'there is no ETag'
echo "ok $step"

step=get
expect "$(call "$entity/diary")" 200
expect "$(cat "$work/body")" 'a quiet morning'
expect "$(header etag)" "$etag"
echo "ok $step"

step=head
expect "$(call --spider "$entity/diary")" 200
expect "$(header content-length)" 15
echo "ok $step"

step=get_unchanged
expect "$(call --header="If-None-Match: $etag" "$entity/diary")" 304
echo "ok $step"

step=put_conditional
expect "$(call --method=PUT --header="If-Match: $etag" --body-data=x "$entity/diary")" 501
echo "ok $step"

step=part
# Wget discards a 206 that it did not request itself, and requests everything up to the end.
expect "$(call --start-pos=2 "$entity/diary")" 206
expect "$(cat "$work/body")" 'quiet morning'
echo "ok $step"

step=delete
expect "$(call --method=DELETE "$entity/diary")" 202
echo "ok $step"

step=missing
expect "$(call "$entity/diary")" 404
expect "$(header content-type)" application/problem+json
echo "ok $step"

step=ttl
expect "$(call --method=PUT --body-data=gone "$entity/note&ttl=1000")" 201
status=$(call "$entity/note")
if [ "$status" = 200 ]; then [ -n "$(header veche-expires-at)" ] || fail 'there is no Veche-Expires-At'; fi
for _ in $(seq 100); do
    status=$(call "$entity/note")
    [ "$status" = 404 ] && break
    sleep 0.1
done
expect "$status" 404
echo "ok $step"

step=large
head -c 4194304 /dev/urandom >"$work/large"
expect "$(call --method=PUT --body-file="$work/large" "$entity/large")" 201
expect "$(call "$entity/large")" 200
cmp -s "$work/large" "$work/body" || fail 'the bytes differ'
echo "ok $step"

step=long_key
long=$(printf "%$((8192 - ${#prefix} - 1))s" | sed 's/ /%25/g')
expect "$(call --method=PUT --body-data=long "$entity/$long")" 201
expect "$(call "$entity/$long")" 200
expect "$(cat "$work/body")" long
echo "ok $step"

step=expect
head -c 1048576 "$work/large" >"$work/part"
expect "$(call --method=PUT --header='Expect: 100-continue' --body-file="$work/part" "$entity/expect")" 201
echo "ok $step"

step=batch
{
    printf '{"key":"%s/batch/a","value":"1"}\n' "$prefix"
    printf '{"key":"%s/batch/b","value":"2","ttl":99999999999999}\n' "$prefix"
    printf '{"key":"%s/batch/c","value":"3"}\n' "$prefix"
} >"$work/batch"
expect "$(call --post-file="$work/batch" --header='Content-Type: application/x-ndjson' "$url/v0/entities?results=errors")" 200
grep -q '^{"entry":2,"status":400,' "$work/body" || fail "$(cat "$work/body")"
expect "$(tail -n 1 "$work/body")" '{"entries":3,"failed":1}'
echo "ok $step"

step=range_lines
expect "$(call "$url/v0/entities?prefix=$prefix/batch/")" 200
expect "$(cat "$work/body")" "$(printf '%s/batch/a\n1%s/batch/c\n3' "$prefix" "$prefix")"
echo "ok $step"

step=range_ndjson
expect "$(call --header='Accept: application/x-ndjson' "$url/v0/entities?prefix=$prefix/batch/")" 200
expect "$(sed 's/,"version".*//' "$work/body")" "$(printf '{"key":"%s/batch/a","value":"1"\n{"key":"%s/batch/c","value":"3"' "$prefix" "$prefix")"
echo "ok $step"

step=options
expect "$(call --method=OPTIONS "$url/v0/entity")" 204
[ -n "$(header allow)" ] || fail 'there is no Allow'
echo "ok $step"

step=keep_alive
for _ in $(seq 100); do echo "$entity/expect"; done >"$work/urls"
wget -v --no-netrc --tries=1 --timeout=30 -O /dev/null -i "$work/urls" 2>"$work/log" || fail 'a request failed'
expect "$(grep -c 'Reusing existing connection' "$work/log")" 99
echo "ok $step"
