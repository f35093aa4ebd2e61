// The conversation of README.md with the net/http of Go.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"time"
)

type conversation struct {
	client      *http.Client
	url, prefix string
	opened      int
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func check(step string, right bool, seen ...any) {
	if !right {
		fmt.Fprintln(os.Stderr, append([]any{"go:", step + ":"}, seen...)...)
		os.Exit(1)
	}
}

func passed(step string) { fmt.Println("ok", step) }

func (c *conversation) entity(name string, more ...string) string {
	query := url.Values{"id": {c.prefix + "/" + name}}
	for i := 0; i < len(more); i += 2 {
		query.Set(more[i], more[i+1])
	}
	return c.url + "/v0/entity?" + query.Encode()
}

func (c *conversation) call(method, target string, body io.Reader, header ...string) answer {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			c.opened++
		}
	}}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), method, target, body)
	check(method, err == nil, err)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := c.client.Do(request)
	check(method+" "+target, err == nil, err)
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	check(method+" "+target, err == nil, err)
	return answer{response.StatusCode, response.Header, read}
}

func lines(body []byte) []map[string]any {
	var all []map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	for decoder.More() {
		var line map[string]any
		err := decoder.Decode(&line)
		check("json", err == nil, err, string(body))
		all = append(all, line)
	}
	return all
}

func main() {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ExpectContinueTimeout = 10 * time.Second
	c := &conversation{client: &http.Client{Timeout: 30 * time.Second, Transport: transport}, url: os.Args[1], prefix: os.Args[2]}

	a := c.call("PUT", c.entity("diary"), strings.NewReader("a quiet morning"))
	etag := a.header.Get("ETag")
	check("put", a.status == 201 && etag != "", a)
	passed("put")

	a = c.call("GET", c.entity("diary"), nil)
	check("get", a.status == 200 && string(a.body) == "a quiet morning" && a.header.Get("ETag") == etag, a)
	passed("get")

	a = c.call("HEAD", c.entity("diary"), nil)
	check("head", a.status == 200 && a.header.Get("Content-Length") == "15" && len(a.body) == 0, a)
	passed("head")

	a = c.call("GET", c.entity("diary"), nil, "If-None-Match", etag)
	check("get_unchanged", a.status == 304, a)
	passed("get_unchanged")

	a = c.call("PUT", c.entity("diary"), strings.NewReader("x"), "If-Match", etag)
	check("put_conditional", a.status == 501, a)
	passed("put_conditional")

	a = c.call("GET", c.entity("diary"), nil, "Range", "bytes=2-6")
	check("part", a.status == 206 && string(a.body) == "quiet", a)
	passed("part")

	a = c.call("DELETE", c.entity("diary"), nil)
	check("delete", a.status == 202, a)
	passed("delete")

	a = c.call("GET", c.entity("diary"), nil)
	check("missing", a.status == 404 && a.header.Get("Content-Type") == "application/problem+json", a)
	passed("missing")

	a = c.call("PUT", c.entity("note", "ttl", "1000"), strings.NewReader("gone"))
	check("ttl", a.status == 201, a)
	a = c.call("GET", c.entity("note"), nil)
	check("ttl", a.status == 404 || a.header.Get("Veche-Expires-At") != "", a)
	for i := 0; i < 100 && a.status != 404; i++ {
		time.Sleep(100 * time.Millisecond)
		a = c.call("GET", c.entity("note"), nil)
	}
	check("ttl", a.status == 404, a)
	passed("ttl")

	large := make([]byte, 4<<20)
	rand.Read(large)
	a = c.call("PUT", c.entity("large"), bytes.NewReader(large))
	check("large", a.status == 201, a)
	a = c.call("GET", c.entity("large"), nil)
	check("large", a.status == 200 && bytes.Equal(a.body, large), a.status)
	passed("large")

	long := strings.Repeat("\u0416", (8191-len(c.prefix))/2)
	a = c.call("PUT", c.entity(long), strings.NewReader("long"))
	check("long_key", a.status == 201, a)
	a = c.call("GET", c.entity(long), nil)
	check("long_key", a.status == 200 && string(a.body) == "long", a)
	passed("long_key")

	a = c.call("PUT", c.entity("expect"), bytes.NewReader(large[:1<<20]), "Expect", "100-continue")
	check("expect", a.status == 201, a)
	passed("expect")

	reader, writer := io.Pipe()
	go func() {
		encoder := json.NewEncoder(writer)
		encoder.Encode(map[string]any{"key": c.prefix + "/batch/a", "value": "1"})
		encoder.Encode(map[string]any{"key": c.prefix + "/batch/b", "value": "2", "ttl": 99999999999999})
		encoder.Encode(map[string]any{"key": c.prefix + "/batch/c", "value": "3"})
		writer.Close()
	}()
	a = c.call("POST", c.url+"/v0/entities?results=errors", reader, "Content-Type", "application/x-ndjson")
	results := lines(a.body)
	check("batch", a.status == 200 && len(results) == 2, a.status, string(a.body))
	check("batch", results[0]["entry"] == 2.0 && results[0]["status"] == 400.0 && results[1]["failed"] == 1.0, string(a.body))
	passed("batch")

	ranged := c.url + "/v0/entities?prefix=" + url.QueryEscape(c.prefix+"/batch/")
	a = c.call("GET", ranged, nil)
	check("range_lines", string(a.body) == c.prefix+"/batch/a\n1"+c.prefix+"/batch/c\n3", string(a.body))
	passed("range_lines")

	a = c.call("GET", ranged, nil, "Accept", "application/x-ndjson")
	found := lines(a.body)
	check("range_ndjson", len(found) == 2 && found[0]["key"] == c.prefix+"/batch/a" && found[1]["value"] == "3", string(a.body))
	passed("range_ndjson")

	a = c.call("OPTIONS", c.url+"/v0/entity", nil)
	check("options", a.status == 204 && a.header.Get("Allow") != "", a)
	passed("options")

	c.client.CloseIdleConnections()
	c.opened = 0
	for i := 0; i < 100; i++ {
		a = c.call("GET", c.entity("expect"), nil)
		check("keep_alive", a.status == 200, a.status)
	}
	check("keep_alive", c.opened == 1, c.opened, "connections were opened")
	passed("keep_alive")
}
