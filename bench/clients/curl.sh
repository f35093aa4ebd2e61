#!/usr/bin/env bash
# The conversation of README.md with curl.
set -euo pipefail
url=$1 prefix=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "curl: $step: $*" >&2; exit 1; }
expect() { [ "$1" = "$2" ] || fail "got '$1', expected '$2'"; }
# Prints the status; the body is in $work/body, the head in $work/head.
call() { curl -sS --max-time 30 -o "$work/body" -D "$work/head" -w '%{http_code}' "$@"; }
header() { tr -d '\r' <"$work/head" | awk -v name="$1" 'tolower($1) == tolower(name) ":" { print $2 }'; }
entity="$url/v0/entity?id=$prefix"

step=put
expect "$(call -X PUT --data-binary 'a quiet morning' "$entity/diary")" 201
etag=$(header etag)
[ -n "$etag" ] || fail 'there is no ETag'
echo "ok $step"

step=get
expect "$(call "$entity/diary")" 200
expect "$(cat "$work/body")" 'a quiet morning'
expect "$(header etag)" "$etag"
echo "ok $step"

step=head
expect "$(call -I "$entity/diary")" 200
expect "$(header content-length)" 15
echo "ok $step"

step=get_unchanged
expect "$(call -H "If-None-Match: $etag" "$entity/diary")" 304
echo "ok $step"

step=put_conditional
expect "$(call -X PUT -H "If-Match: $etag" --data-binary x "$entity/diary")" 501
echo "ok $step"

step=part
expect "$(call -r 2-6 "$entity/diary")" 206
expect "$(cat "$work/body")" quiet
echo "ok $step"

step=delete
expect "$(call -X DELETE "$entity/diary")" 202
echo "ok $step"

step=missing
expect "$(call "$entity/diary")" 404
expect "$(header content-type)" application/problem+json
echo "ok $step"

step=ttl
expect "$(call -X PUT --data-binary gone "$entity/note&ttl=1000")" 201
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
expect "$(call -T "$work/large" "$entity/large")" 201
expect "$(call "$entity/large")" 200
cmp -s "$work/large" "$work/body" || fail 'the bytes differ'
echo "ok $step"

step=long_key
# All of 8,192 bytes but the prefix, percent-encoded.
long=$(printf "%$((8192 - ${#prefix} - 1))s" | sed 's/ /%6C/g')
expect "$(call -X PUT --data-binary long "$entity/$long")" 201
expect "$(call "$entity/$long")" 200
expect "$(cat "$work/body")" long
echo "ok $step"

step=expect
head -c 1048576 "$work/large" >"$work/part"
expect "$(call -T "$work/part" -H 'Expect: 100-continue' "$entity/expect")" 201
echo "ok $step"

step=batch
{
    printf '{"key":"%s/batch/a","value":"1"}\n' "$prefix"
    printf '{"key":"%s/batch/b","value":"2","ttl":99999999999999}\n' "$prefix"
    printf '{"key":"%s/batch/c","value":"3"}\n' "$prefix"
} >"$work/batch"
expect "$(call --data-binary "@$work/batch" -H 'Content-Type: application/x-ndjson' "$url/v0/entities?results=errors")" 200
grep -q '^{"entry":2,"status":400,' "$work/body" || fail "$(cat "$work/body")"
expect "$(tail -n 1 "$work/body")" '{"entries":3,"failed":1}'
echo "ok $step"

step=range_lines
expect "$(call "$url/v0/entities?prefix=$prefix/batch/")" 200
expect "$(cat "$work/body")" "$(printf '%s/batch/a\n1%s/batch/c\n3' "$prefix" "$prefix")"
echo "ok $step"

step=range_ndjson
expect "$(call -H 'Accept: application/x-ndjson' "$url/v0/entities?prefix=$prefix/batch/")" 200
expect "$(sed 's/,"version".*//' "$work/body")" "$(printf '{"key":"%s/batch/a","value":"1"\n{"key":"%s/batch/c","value":"3"' "$prefix" "$prefix")"
echo "ok $step"

step=options
expect "$(call -X OPTIONS "$url/v0/entity")" 204
[ -n "$(header allow)" ] || fail 'there is no Allow'
echo "ok $step"

step=keep_alive
curl -sS --max-time 30 -o /dev/null -w '%{http_code} %{num_connects}\n' "$entity/expect#[1-100]" >"$work/many"
expect "$(awk '{ if ($1 == 200) ok++; connects += $2 } END { print ok, connects }' "$work/many")" '100 1'
echo "ok $step"
