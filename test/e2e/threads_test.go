//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// threadMeta returns the _meta in which Codex names the thread of a call.
func threadMeta(thread, parent string) string {
	turn := fmt.Sprintf(`{"thread_id":%q,"thread_source":"user"}`, thread)
	if parent != "" {
		turn = fmt.Sprintf(`{"thread_id":%q,"thread_source":"subagent","parent_thread_id":%q}`, thread, parent)
	}
	return fmt.Sprintf(`{"threadId":%q,"x-codex-turn-metadata":%s}`, thread, turn)
}

// inThread calls a tool in a thread; meta is "" for none.
func inThread(t *testing.T, c *mcpclient.Client, ctx context.Context, meta, name, arguments string) mcpclient.Message {
	t.Helper()
	if meta != "" {
		meta = `,"_meta":` + meta
	}
	return call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s%s}`, name, arguments, meta))
}

// dial is one more host of a gateway that runs on HTTP.
func (g *gateway) dial(ctx context.Context, url string, era mcpclient.Era) *mcpclient.Client {
	g.t.Helper()
	c := mcpclient.HTTP(url, era)
	g.closes(c)
	if _, err := c.Start(ctx); err != nil {
		g.t.Fatal(err)
	}
	return c
}

// placed is where a read was found to be made, and by which rung.
type placed struct{ context, rung string }

// places returns the places of all reads, in their order.
func (g *gateway) places() (all []placed) {
	g.t.Helper()
	for _, r := range g.trace("--kind", "mcp/request:tools/call") {
		if r.Audit.Tool == "read_file" {
			all = append(all, placed{r.Context, r.Audit.Rung})
		}
	}
	return all
}

// The threads of a host are sessions of their own: a call is in the branch that
// its thread opened or, of a subagent's, was handed; and nothing is guessed.
func TestThreads(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "a file")
	g := newGateway(t, filesConfig(dir, ""))
	url := g.http()
	connect := func(era mcpclient.Era) *mcpclient.Client { return g.dial(ctx, url, era) }
	one, two, three := uuid.NewString(), uuid.NewString(), uuid.NewString()
	main, sub, third := connect(mcpclient.Legacy), connect(mcpclient.Legacy), connect(mcpclient.Legacy)
	modern := connect(mcpclient.Modern)
	b := own[created](t, inThread(t, main, ctx, threadMeta(one, ""), "branch_create", `{"description":"work"}`)).BranchID
	in, not := `{"path":"a","branch_id":"`+b+`"}`, `{"path":"a"}`
	var want []placed
	read := func(c *mcpclient.Client, meta, arguments, context, rung string) {
		t.Helper()
		m := inThread(t, c, ctx, meta, "files__read_file", arguments)
		if parseResult(t, m).IsError {
			t.Errorf("the read was refused: %s", m.Result)
		}
		want = append(want, placed{context, rung})
	}
	subagent := threadMeta(two, one)
	read(main, threadMeta(one, ""), not, b, "thread")
	read(main, threadMeta(three, ""), not, "", "main") // another thread of the connection
	read(main, "", not, b, "session")                  // a host that names none
	read(main, `{"threadId":"x y"}`, not, b, "session")
	read(sub, subagent, not, "", "main") // not told of the branch
	read(sub, subagent, in, b, "argument")
	read(sub, subagent, not, b, "thread")
	read(third, subagent, not, "", "main") // the same name on another connection
	read(third, threadMeta(one, ""), not, "", "main")
	read(third, threadMeta(three, ""), in, b, "argument") // a look, by a thread that nobody sent
	read(third, threadMeta(three, ""), not, "", "main")
	read(modern, threadMeta(one, ""), not, "", "main") // no session, so no thread in it
	if s := own[status](t, inThread(t, sub, ctx, subagent, "branch_status", `{}`)); s.BranchID == nil || *s.BranchID != b {
		t.Errorf("the status of the subagent's branch is %+v", s)
	}
	if s := own[status](t, inThread(t, main, ctx, threadMeta(three, ""), "branch_status", `{}`)); s.BranchID != nil {
		t.Errorf("the status of a thread without a branch is %+v", s)
	}
	// A branch that the subagent opens itself has precedence over one that it was handed.
	o := own[created](t, inThread(t, sub, ctx, subagent, "branch_create", `{"description":"a part"}`)).BranchID
	read(sub, subagent, not, o, "thread")
	read(main, threadMeta(one, ""), not, b, "thread")
	own[returned](t, inThread(t, sub, ctx, subagent, "branch_return", `{"branch_id":"`+o+`","message":""}`))
	read(sub, subagent, not, b, "thread")
	own[returned](t, inThread(t, sub, ctx, subagent, "branch_return", `{"branch_id":"`+b+`","message":""}`))
	read(sub, subagent, not, "", "main")
	read(main, threadMeta(one, ""), not, "", "main")
	g.stop()
	if got := g.places(); !slices.Equal(got, want) {
		t.Errorf("the reads were placed\n%q\nwant\n%q", got, want)
	}
}

// Strict sessions and a configuration without implicit branches hold for
// threads, too.
func TestThreadsAreNoWayRound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, config string
		refused      bool // a subagent's use of its parent's branch
		rung         string
	}{
		{"strict", "folding: {session_validation: strict}\n", true, "thread"},
		{"off", "attribution: {implicit: off}\n", false, "main"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			dir := t.TempDir()
			write(t, filepath.Join(dir, "a"), "a file")
			g := newGateway(t, filesConfig(dir, tt.config))
			url := g.http()
			main, sub := g.dial(ctx, url, mcpclient.Legacy), g.dial(ctx, url, mcpclient.Legacy)
			one, two := uuid.NewString(), uuid.NewString()
			b := own[created](t, inThread(t, main, ctx, threadMeta(one, ""), "branch_create", `{"description":"work"}`)).BranchID
			m := inThread(t, sub, ctx, threadMeta(two, one), "files__read_file", `{"path":"a","branch_id":"`+b+`"}`)
			if got := parseResult(t, m).IsError; got != tt.refused {
				t.Errorf("the subagent's call was refused: %v, want %v: %s", got, tt.refused, m.Result)
			}
			inThread(t, sub, ctx, threadMeta(two, one), "files__read_file", `{"path":"a"}`)
			inThread(t, main, ctx, threadMeta(one, ""), "files__read_file", `{"path":"a"}`)
			g.stop()
			all := g.places()
			if len(all) != 3 || all[1] != (placed{"", "main"}) || all[2].rung != tt.rung || (all[2].context == b) != (tt.rung == "thread") {
				t.Errorf("the reads were placed %q", all)
			}
		})
	}
}
