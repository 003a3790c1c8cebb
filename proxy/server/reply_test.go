package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"github.com/foldgate/foldgate/proxy/wire"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// answerOf returns the string in the answer to a sizedCall.
func answerOf(resp *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var m struct{ Result string }
	if err := json.Unmarshal(b, &m); err != nil {
		return "", fmt.Errorf("%d %.200s: %w", resp.StatusCode, b, err)
	}
	return m.Result, nil
}

func sizedCall(t *testing.T, url string, n int) *http.Request {
	return hostRequest(t, "POST", url, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":%d,"_meta":{%q:%q,%q:{}}}}`,
		n, wire.MetaProtocolVersion, wire.VersionModern, wire.MetaClientCapabilities),
		wire.HeaderVersion, wire.VersionModern, wire.HeaderMethod, "m")
}

// sized answers every call with a string as long as its params say.
func sized(ctx context.Context, ex *Request) Reply {
	var n int
	if json.Unmarshal(ex.Msg.Params, &struct{ N *int }{&n}) != nil || n == 0 {
		return echo(ctx, ex)
	}
	return Reply{Result: json.RawMessage(`"` + strings.Repeat("x", n) + `"`)}
}

// A reply's memory is used again once it is sent, and only then: answers keep
// their bytes, also while other hosts hang up in the middle of theirs.
func TestRepliesKeepTheirBytes(t *testing.T) {
	letter := func(n int) string { return string(rune('a' + n%26)) }
	core := newFakeRouter(func(ctx context.Context, ex *Request) Reply {
		r := sized(ctx, ex)
		return Reply{Result: bytes.ReplaceAll(r.Result, []byte("x"), []byte(letter(len(r.Result)-2)))}
	})
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			e := NewHTTP(core, HTTPOptions{Log: testLog(t)})
			srv := httptest.NewUnstartedServer(e.Handler())
			srv.EnableHTTP2 = http2
			if http2 {
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			var wg sync.WaitGroup
			for worker := range 8 {
				wg.Go(func() {
					for i := range 100 {
						n := 1 + (i*7919+worker*104729)%(20<<10)
						r := sizedCall(t, srv.URL+"/mcp", n)
						if i%5 == 0 { // leaves
							ctx, cancel := context.WithTimeout(r.Context(), time.Duration(n%700)*time.Microsecond)
							if resp, err := srv.Client().Do(r.WithContext(ctx)); err == nil {
								resp.Body.Close()
							}
							cancel()
							continue
						}
						if got, err := answerOf(srv.Client().Do(r)); err != nil || got != strings.Repeat(letter(n), n) {
							t.Errorf("answer of %d bytes, %v: want %d times %s", len(got), err, n, letter(n))
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
