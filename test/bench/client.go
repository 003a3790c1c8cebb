//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Revisions of the two eras.
const (
	legacyVersion = "2025-11-25"
	modernVersion = "2026-07-28"
)

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + modernVersion + `","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}`

// caller makes one call after the other on a connection of its own. The answer
// is valid until the next call.
type caller interface {
	call(id int, method, name, arguments string) ([]byte, error)
	close()
}

// message is a request as both transports carry it.
func message(dst []byte, id int, method, name, arguments string, modern bool) []byte {
	dst = fmt.Appendf(dst, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{`, id, method)
	if name != "" {
		dst = fmt.Appendf(dst, `"name":%q,"arguments":%s`, name, arguments)
		if modern {
			dst = append(dst, ',')
		}
	} else if method == "initialize" {
		dst = append(dst, `"protocolVersion":"`+legacyVersion+`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}`...)
	}
	if modern {
		dst = append(dst, modernMeta...)
	}
	return append(dst, "}}"...)
}

// httpCaller speaks HTTP/1.1 on one kept connection, without net/http, because the load
// generator's own cost distorts the measurement.
type httpCaller struct {
	conn    net.Conn
	r       *bufio.Reader
	host    string
	path    string
	session string
	modern  bool
	req     []byte
	body    []byte
	answer  []byte
}

// callTimeout bounds one call.
const callTimeout = 30 * time.Second

func dialHTTP(endpoint, session string, modern bool) (*httpCaller, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return &httpCaller{conn: conn, r: bufio.NewReaderSize(conn, 1<<16), host: u.Host, path: u.Path, session: session, modern: modern}, nil
}

func (c *httpCaller) close() { _ = c.conn.Close() }

func (c *httpCaller) call(id int, method, name, arguments string) ([]byte, error) {
	c.body = message(c.body[:0], id, method, name, arguments, c.modern)
	return c.post(method, name, c.body)
}

func (c *httpCaller) post(method, name string, body []byte) ([]byte, error) {
	q := append(c.req[:0], "POST "...)
	q = append(append(append(q, c.path...), " HTTP/1.1\r\nHost: "...), c.host...)
	q = append(q, "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"...)
	switch {
	case c.modern:
		q = append(append(append(q, "Mcp-Protocol-Version: "+modernVersion+"\r\nMcp-Method: "...), method...), "\r\n"...)
		if name != "" {
			q = append(append(append(q, "Mcp-Name: "...), name...), "\r\n"...)
		}
	case c.session != "":
		q = append(append(append(q, "Mcp-Protocol-Version: "+legacyVersion+"\r\nMcp-Session-Id: "...), c.session...), "\r\n"...)
	}
	q = append(q, "Content-Length: "...)
	q = append(strconv.AppendInt(q, int64(len(body)), 10), "\r\n\r\n"...)
	c.req = append(q, body...)
	_ = c.conn.SetDeadline(time.Now().Add(callTimeout))
	if _, err := c.conn.Write(c.req); err != nil {
		return nil, err
	}
	return c.read()
}

// read takes one response. Of an event stream the last event with data counts,
// which is the reply.
func (c *httpCaller) read() ([]byte, error) {
	status, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	code := string(status[9:12])
	length, chunked, events := 0, false, false
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		key, value, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(": "))
		switch {
		case len(key) == 0:
			if c.answer, err = c.content(length, chunked); err != nil {
				return nil, err
			}
			if code[0] != '2' {
				return nil, fmt.Errorf("status %s: %.300s", code, c.answer)
			}
			if events {
				return lastEvent(c.answer), nil
			}
			return c.answer, nil
		case headerIs(key, "content-length"):
			length, _ = strconv.Atoi(string(value))
		case headerIs(key, "transfer-encoding"):
			chunked = string(value) == "chunked"
		case headerIs(key, "content-type"):
			events = bytes.HasPrefix(value, []byte("text/event-stream"))
		case headerIs(key, "mcp-session-id") && !c.modern:
			c.session = string(value)
		}
	}
}

func headerIs(key []byte, name string) bool {
	return len(key) == len(name) && strings.EqualFold(string(key), name)
}

// content reads a body into c.answer's memory.
func (c *httpCaller) content(length int, chunked bool) ([]byte, error) {
	out := c.answer[:0]
	take := func(n int) error {
		at := len(out)
		if cap(out) < at+n {
			out = append(make([]byte, 0, 2*(at+n)), out...)
		}
		out = out[:at+n]
		_, err := io.ReadFull(c.r, out[at:])
		return err
	}
	if !chunked {
		err := take(length)
		return out, err
	}
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return out, err
		}
		n, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return out, err
		}
		if err := take(int(n)); err != nil {
			return out, err
		}
		if _, err := c.r.Discard(2); err != nil || n == 0 {
			return out, err
		}
	}
}

func lastEvent(stream []byte) []byte {
	if i := bytes.LastIndex(stream, []byte("data: {")); i >= 0 {
		stream = stream[i+6:]
		if end := bytes.IndexByte(stream, '\n'); end >= 0 {
			stream = stream[:end]
		}
	}
	return stream
}

// answersHTTP reports whether something answers HTTP there.
func answersHTTP(endpoint string) bool {
	res, err := http.Get(endpoint)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return true
}
