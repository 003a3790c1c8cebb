package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// arguments holds the arguments of all tools.
type arguments struct {
	Result json.RawMessage // raw: the result, byte for byte
	Error  json.RawMessage // raw: or the error object
	Text   string          // text, noise, stderr, progress: what to say
	Bytes  int             // huge: length of the text
	Count  int             // progress, deep: how many
	Fill   int             // raw, elicit, sample, log, unknown, progress: how many words stand for "@@"
	MS     int             // slow: for how long
	Wait   string          // raw: answers when this file exists
	Params json.RawMessage // elicit, sample, log, unknown: params of the message
	Method string          // log, elicit: of the message instead of the usual one
	Task   *answer         // raw: the answer to tasks/get and tasks/result from then on
	// Answers are of raw, too: the answers to other methods from then on.
	Answers map[string]answer
}

type answer struct{ Result, Error json.RawMessage }

// toolNames lists the tools; each is one case of tool.
var toolNames = []string{
	"echo",         // the params as received, as text and as structuredContent
	"raw",          // exactly the given result or error
	"text",         // one text block
	"progress",     // count progress notifications, then a result
	"log",          // a log notification with the given params, then a result
	"elicit",       // asks the host; the result is its answer
	"sample",       // the same with sampling
	"roots",        // the same with roots/list
	"unknown",      // an unknown notification and an unknown request; the result is the answer
	"slow",         // a result after ms, none if cancelled
	"crash",        // the process exits with status 3 in the middle of the call
	"noise",        // text as a line on stdout that is no message, then a result
	"stderr",       // text on stderr, then a result
	"huge",         // a text block of so many bytes
	"deep",         // structured content of count levels
	"list_changed", // lists one tool more or less, says so out of the call's stream
	"touch",        // says that resource fake://a was updated
	"pid",          // the process id
}

// clientTools returns the tools that only clients with a capability see.
func (c *call) clientTools(p params) (names []string) {
	if !c.s.can {
		return nil
	}
	c.sess.mu.Lock()
	declared := c.sess.client
	c.sess.mu.Unlock()
	if c.isNew {
		declared = p.Meta.Client
	}
	var all map[string]map[string]any
	_ = json.Unmarshal(declared, &all)
	for name, members := range all {
		names = append(names, "can-"+name)
		for member := range members {
			names = append(names, "can-"+name+"."+member)
		}
	}
	return names
}

func (s *server) toolList(more []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	names := append(slices.Clone(toolNames), more...)
	if s.extra {
		names = append(names, "extra")
	}
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":%q,"description":%s,"inputSchema":{"type":"object","properties":{"n":{"type":"number","maximum":9007199254740993}},"x-future":1.0},"future":{"z":1,"a":2}}`, name, quote("test tool"+s.leak))
	}
	return `"tools":[` + b.String() + `]`
}

func (c *call) text(text string) string {
	return c.done(`"content":[{"type":"text","text":`+string(quote(text))+`}]`, false)
}

// tool runs one tool.
func (c *call) tool(ctx context.Context, p params) (result, errObject string) {
	var a arguments
	_ = json.Unmarshal(p.Arguments, &a)
	fill := func(text string) string { return strings.ReplaceAll(text, "@@", strings.Repeat("zebra ", a.Fill)) }
	if a.Fill > 0 { // a large answer to a small call
		a.Result, a.Error, a.Params, a.Text = json.RawMessage(fill(string(a.Result))), json.RawMessage(fill(string(a.Error))), json.RawMessage(fill(string(a.Params))), fill(a.Text)
		a.Method = fill(a.Method)
	}
	switch p.Name {
	case "echo":
		return c.done(`"content":[{"type":"text","text":`+string(quote(string(c.m.Params)))+`}],"structuredContent":`+string(c.m.Params), false), ""
	case "raw":
		for a.Wait != "" && ctx.Err() == nil {
			if _, err := os.Stat(a.Wait); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if a.Task != nil {
			a.Answers = map[string]answer{"tasks/": *a.Task}
		}
		c.s.mu.Lock()
		for method, one := range a.Answers {
			c.s.answers[method] = [2]string{fill(string(one.Result)), fill(string(one.Error))}
		}
		c.s.mu.Unlock()
		return string(a.Result), string(a.Error)
	case "progress":
		for i := 1; i <= a.Count && len(p.Meta.ProgressToken) > 0; i++ {
			c.notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":%d,"total":%d,"message":%s,"future":1.0}`, p.Meta.ProgressToken, i, a.Count, quote(a.Text)))
		}
	case "log":
		log := func() {
			for range max(a.Count, 1) {
				c.notify(cmp.Or(a.Method, "notifications/message"), string(a.Params))
			}
		}
		if a.MS == 0 {
			log()
		} else { // when the call is over
			time.AfterFunc(time.Duration(a.MS)*time.Millisecond, log)
		}
	case "elicit":
		return c.question(ctx, p, cmp.Or(a.Method, "elicitation/create"), a.Params), ""
	case "sample":
		return c.question(ctx, p, "sampling/createMessage", a.Params), ""
	case "roots":
		return c.question(ctx, p, "roots/list", json.RawMessage(`{}`)), ""
	case "unknown":
		for range max(a.Count, 1) {
			c.notify("notifications/x/custom", string(a.Params))
		}
		if !c.isNew {
			return c.text(c.ask(ctx, "x/custom", string(a.Params))), ""
		}
	case "slow":
		select {
		case <-ctx.Done():
			c.s.write(quote("slow ended: " + context.Cause(ctx).Error()))
			return "", ""
		case <-time.After(time.Duration(a.MS) * time.Millisecond):
		}
	case "deep":
		return c.done(`"content":[],"structuredContent":`+strings.Repeat("[", a.Count)+strings.Repeat("]", a.Count), false), ""
	case "huge":
		return c.text(strings.Repeat("word ", a.Bytes/5)), ""
	case "touch":
		for range max(a.Count, 1) {
			c.out("notifications/resources/updated", `{"uri":"fake://a"}`)
		}
		c.s.updated("fake://a")
	case "pid":
		return c.text(fmt.Sprint(os.Getpid())), ""
	default:
		if slices.Contains(c.clientTools(p), p.Name) {
			return c.text(p.Name), ""
		}
		return c.misbehave(p.Name, a)
	}
	return c.text(p.Name + " " + a.Text), ""
}

// misbehave runs the tools that act on the process or its streams.
func (c *call) misbehave(name string, a arguments) (result, errObject string) {
	switch name {
	case "text", "extra":
		return c.text(a.Text), ""
	case "crash":
		os.Exit(3)
	case "noise":
		if c.rawLine != nil {
			c.rawLine(a.Text)
		}
	case "stderr":
		fmt.Fprintln(os.Stderr, a.Text)
	case "list_changed":
		c.s.mu.Lock()
		c.s.extra = !c.s.extra
		c.s.mu.Unlock()
		c.out("notifications/tools/list_changed", `{}`)
		c.s.changed()
	default:
		return "", fmt.Sprintf(`{"code":-32602,"message":"unknown tool: %s"}`, name)
	}
	return c.text(name + " done"), ""
}

// out sends a notification that belongs to no call, on the call's stream if
// the session has no other.
func (c *call) out(method, params string) {
	if c.isNew {
		return // only a subscriptions/listen hears of it
	}
	msg := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
	if c.sess.push != nil {
		c.sess.push(msg)
		return
	}
	c.emit(msg)
}

// question asks the host for something: by a request in the legacy era, by a
// result that asks for input in the modern one.
func (c *call) question(ctx context.Context, p params, method string, ask json.RawMessage) string {
	if len(ask) == 0 {
		ask = json.RawMessage(`{}`)
	}
	switch {
	case !c.isNew:
		return c.text(c.ask(ctx, method, string(ask)))
	case p.InputResponses != nil:
		return c.text(p.RequestState + " " + string(p.InputResponses))
	}
	return fmt.Sprintf(`{"resultType":"input_required","inputRequests":{"q":{"method":%q,"params":%s}},"requestState":"state-1"}`, method, ask)
}
