//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// lean is an MCP server that costs as little as possible, so that the measurement is of the
// program in front of it. It speaks both eras, over both transports.
type lean struct {
	texts *texts
	tools int // shown beside text and leak
	calls atomic.Uint64
}

// runUpstream is the program's other role: args are "stdio" or "http", and how
// many further tools there are.
func runUpstream(args []string) error {
	s := &lean{texts: newTexts(1 << 15)}
	if len(args) > 1 {
		s.tools, _ = strconv.Atoi(args[1])
	}
	if args[0] == "http" {
		return s.http()
	}
	return s.stdio(os.Stdin, os.Stdout)
}

func (s *lean) stdio(in io.Reader, out io.Writer) error {
	r, w := bufio.NewReaderSize(in, 1<<20), bufio.NewWriterSize(out, 1<<20)
	buf := make([]byte, 0, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil // the host is gone
		}
		if buf = s.answer(buf[:0], line); len(buf) > 0 {
			_, _ = w.Write(append(buf, '\n'))
		}
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

func (s *lean) http() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/mcp\n", ln.Addr())
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		out := s.answer(nil, body)
		if out == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(out)))
		if bytes.Contains(body, []byte(`"initialize"`)) {
			h.Set("Mcp-Session-Id", "lean")
		}
		_, _ = w.Write(out)
	})}
	return srv.Serve(ln)
}

const serverInfo = `"capabilities":{"tools":{}},"serverInfo":{"name":"lean","version":"1"}`

// answer appends the response to msg to dst; nothing for a notification.
func (s *lean) answer(dst, msg []byte) []byte {
	var id, method, params []byte
	for m := range rawjson.Members(msg) {
		switch {
		case m.Is("id"):
			id = m.Value
		case m.Is("method"):
			method = m.Value
		case m.Is("params"):
			params = m.Value
		}
	}
	if id == nil {
		return nil
	}
	modern := bytes.Contains(params, []byte(modernVersion))
	dst = append(append(append(dst, `{"jsonrpc":"2.0","id":`...), id...), `,"result":{`...)
	switch string(method) {
	case `"initialize"`:
		version, _ := rawjson.GetString(params, "protocolVersion")
		if version >= modernVersion {
			version = legacyVersion
		}
		dst = append(append(append(dst, `"protocolVersion":"`...), version...), `",`+serverInfo...)
	case `"server/discover"`:
		dst = append(dst, `"supportedVersions":["`+modernVersion+`"],"ttlMs":0,"cacheScope":"public",`+serverInfo...)
	case `"tools/list"`:
		dst = s.list(dst)
		if modern {
			dst = append(dst, `,"ttlMs":0,"cacheScope":"public"`...)
		}
	case `"tools/call"`:
		dst = s.call(dst, params)
	default:
		dst = append(dst, `"ok":true`...)
	}
	if modern {
		dst = append(dst, `,"resultType":"complete"`...)
	}
	return append(dst, `}}`...)
}

func (s *lean) list(dst []byte) []byte {
	const schema = `","description":"returns text","inputSchema":{"type":"object","properties":{"size":{"type":"integer"}}}}`
	dst = append(dst, `"tools":[{"name":"text`+schema+`,{"name":"leak`+schema...)
	for i := range s.tools {
		dst = fmt.Appendf(dst, `,{"name":"more_%d%s`, i, schema)
	}
	return append(dst, ']')
}

// leaked is a credential that no service ever issued.
var leaked = "ghp_" + strings.Repeat("x7Kd9QmZ2b", 4)[:36]

func (s *lean) call(dst, params []byte) []byte {
	dst = append(dst, `"content":[{"type":"text","text":"`...)
	if name, _ := rawjson.GetString(params, "name"); name == "leak" {
		return append(append(append(dst, `call 0: github_token = `...), leaked...), `"}]`...)
	}
	raw, _ := rawjson.Get(params, "arguments", "size")
	size, _ := strconv.Atoi(string(raw))
	return append(s.texts.append(dst, s.calls.Add(1), size), `"}]`...)
}
