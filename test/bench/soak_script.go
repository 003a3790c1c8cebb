//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// soakClient is one connection with the scripts that run on it.
type soakClient struct {
	load *soakLoad
	ctx  context.Context
	lane *lane
	conn caller
	r    *rand.Rand
}

// script does one of the things that hosts do.
func (c *soakClient) script() error {
	switch n := c.r.IntN(1000); {
	case n < 4 && !c.lane.sc.modern:
		return c.ownSession()
	case n < 50:
		return c.inBranch()
	}
	return c.text("")
}

// call makes one call in its time; an answer that is an error is a failure.
func (c *soakClient) call(kind, tool, args string) ([]byte, error) {
	if err := c.load.pace(c.ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	answer, err := c.conn.call(c.lane.id(), "tools/call", tool, args)
	took := time.Since(start)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	wrong, _ := rawjson.Get(answer, "result", "isError")
	if _, ok := rawjson.Get(answer, "result", "content"); !ok || string(wrong) == "true" {
		return nil, fmt.Errorf("%s %s: %.300s", tool, args, answer)
	}
	c.load.note(kind, took)
	return answer, nil
}

// text asks for a result. Most are small; some are folded, and a part of these is read. One in
// four comes from the server behind HTTP.
func (c *soakClient) text(branch string) error {
	size, more := 100, ""
	switch n := c.r.IntN(100); {
	case n < 1:
		size = 1 << 20
	case n < 8:
		size = 64 << 10
	case n < 30:
		size = 4 << 10
	}
	tool, kind := "text", bytesName(size)
	if c.r.IntN(4) == 0 {
		tool = "web__text"
	}
	if branch != "" {
		more = fmt.Sprintf(`,"branch_id":%q`, branch)
	}
	answer, err := c.call(kind, tool, fmt.Sprintf(`{"size":%d%s}`, size, more))
	if err != nil {
		return err
	}
	_, rest, folded := bytes.Cut(answer, []byte(`{\"handle\":\"`))
	switch {
	case folded != (size > 1<<14):
		return fmt.Errorf("a result of %d bytes, folded: %t: %.300s", size, folded, answer)
	case !folded && !bytes.Contains(answer, []byte(`"call `)):
		return fmt.Errorf("not the text asked for: %.300s", answer)
	case folded:
		handle, _, _ := bytes.Cut(rest, []byte(`\"`))
		_, err = c.call("branch_read", "branch_read", fmt.Sprintf(`{"handle":%q,"lines":"1-20"}`, handle))
	}
	return err
}

// inBranch opens a branch, calls in it and returns it. One in ten is left to
// its timeout.
func (c *soakClient) inBranch() error {
	abandon := c.r.IntN(10) == 0
	args := `{"description":"load"}`
	if abandon {
		args = `{"description":"load","timeout_seconds":20}`
	}
	answer, err := c.call("branch_create", "branch_create", args)
	if err != nil {
		return err
	}
	id, ok := rawjson.GetString(answer, "result", "structuredContent", "branch_id")
	if !ok {
		return fmt.Errorf("branch_create: %.300s", answer)
	}
	if abandon {
		return nil
	}
	for range 8 {
		if err := c.text(id); err != nil {
			return err
		}
	}
	_, err = c.call("branch_return", "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"done"}`, id))
	return err
}

// ownSession opens a session, with a server process of its own, and ends it.
func (c *soakClient) ownSession() error {
	lane, conn, err := openCaller(c.load.s, c.lane.sc)
	if err != nil {
		return err
	}
	defer conn.close()
	own := &soakClient{load: c.load, ctx: c.ctx, lane: lane, conn: conn, r: c.r}
	for range 5 {
		if err := own.text(""); err != nil {
			_ = lane.end()
			return err
		}
	}
	if err := own.inBranch(); err != nil {
		_ = lane.end()
		return err
	}
	c.load.note("session", 0)
	return lane.end()
}

// end ends a legacy session over HTTP.
func (l *lane) end() error {
	if l.session == "" {
		return nil
	}
	req, err := http.NewRequest(http.MethodDelete, l.s.endpoint, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Mcp-Session-Id", l.session)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("end of session: %w", err)
	}
	_ = res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("end of session: %s", res.Status)
	}
	return nil
}
