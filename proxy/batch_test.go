package proxy

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// The results of a batch of tools with odd names can be read.
func TestBatchOfToolsWithOddNames(t *testing.T) {
	const a, b = `two words/100%`, `tab\tand ü`
	r := newRig(t, false, map[string]fakeUpstream{"up": {version: "2025-11-25", caps: `{"tools":{}}`, serve: func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		if c.Method == "tools/list" {
			return result(`{"tools":[{"name":"` + a + `","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"` + b + `","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`)
		}
		return result(`{"content":[{"type":"text","text":"what was read"}]}`)
	}}})
	r.initialize()
	r.ok("tools/list", `{}`)
	for _, steps := range []string{`{"tool":"up__` + a + `"}`, `{"tool":"up__` + a + `"},{"tool":"up__` + b + `"}`} {
		text := r.tool("branch_run", `{"steps":[`+steps+`]}`)
		handle := regexp.MustCompile("res_[0-9a-z]{26}").FindString(text)
		if got := r.tool("branch_read", `{"handle":"`+handle+`"}`); !strings.Contains(got, "what was read") {
			t.Errorf("a batch of %s: %s; read on: %s", steps, text, got)
		}
	}
}
