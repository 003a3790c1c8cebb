package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
)

const (
	legacyVersion = "2025-11-25"
	modernVersion = "2026-07-28"

	capabilities = `{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"completions":{},"logging":{},"futureCap":{"n":1.0}}`
	serverInfo   = `{"name":"fakeserver","version":"1.0","future":9007199254740993}`
	resourceList = `"resources":[{"uri":"fake://a","name":"a","future":true},{"uri":"fake://b","name":"b"}]`
	promptList   = `"prompts":[{"name":"greet","arguments":[{"name":"who","required":true}],"future":1.0}]`
)

// params are the members that some method needs; the rest stays raw.
type params struct {
	Name      string
	Arguments json.RawMessage
	URI       string
	Meta      struct {
		ProgressToken json.RawMessage `json:"progressToken"`
		Version       string          `json:"io.modelcontextprotocol/protocolVersion"`
		Client        json.RawMessage `json:"io.modelcontextprotocol/clientCapabilities"`
	} `json:"_meta"`
	Capabilities   json.RawMessage
	InputResponses json.RawMessage `json:"inputResponses"`
	RequestState   string          `json:"requestState"`
}

// dispatch returns a result or an error object, as raw JSON.
func (c *call) dispatch(ctx context.Context) (result, errObject string) {
	var p params
	_ = json.Unmarshal(c.m.Params, &p)
	c.isNew = p.Meta.Version >= modernVersion
	if c.isNew && !c.s.modern {
		return "", `{"code":-32022,"message":"unsupported protocol version","data":{"supported":["` + legacyVersion + `"]}}`
	}
	c.s.mu.Lock()
	for method, answer := range c.s.answers {
		if strings.HasPrefix(c.m.Method, method) {
			c.s.mu.Unlock()
			return answer[0], answer[1]
		}
	}
	c.s.mu.Unlock()
	if c.s.file != "" {
		data, err := os.ReadFile(c.s.file)
		var answers map[string]json.RawMessage
		if err == nil {
			err = json.Unmarshal(data, &answers)
		}
		if err != nil {
			log.Fatal(err)
		}
		if answer := answers[c.m.Method]; answer != nil {
			return string(answer), ""
		}
	}
	switch c.m.Method {
	case "initialize":
		if !c.s.legacy {
			return "", `{"code":-32022,"message":"unsupported protocol version","data":{"supported":["` + modernVersion + `"]}}`
		}
		c.sess.mu.Lock()
		c.sess.client = p.Capabilities
		c.sess.mu.Unlock()
		return `{"protocolVersion":"` + legacyVersion + `","capabilities":` + capabilities + `,"serverInfo":` + serverInfo + `,"instructions":` + string(quote("fakeserver obeys"+c.s.leak)) + `,"future":[1.0]}`, ""
	case "server/discover":
		if !c.s.modern {
			return "", `{"code":-32601,"message":"method not found"}`
		}
		return c.done(`"supportedVersions":["`+modernVersion+`"],"capabilities":`+capabilities+`,"instructions":`+string(quote("fakeserver obeys"+c.s.leak)), true), ""
	case "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		if c.m.Method == "resources/subscribe" {
			dieBy(p.URI)
		}
		return `{}`, ""
	case "subscriptions/listen":
		return c.listen(ctx)
	case "tools/list":
		return c.done(c.s.toolList(c.clientTools(p)), true), ""
	case "tools/call":
		return c.tool(ctx, p)
	case "tasks/result":
		return c.done(`"content":[{"type":"text","text":`+string(quote(strings.Repeat("a row of the task's result\n", 4000)))+`}]`, false), ""
	case "tasks/get":
		return c.done(`"taskId":"t","status":"completed","result":{"content":[{"type":"text","text":`+string(quote(strings.Repeat("zebra ", 20000)))+`}]}`, false), ""
	case "resources/list":
		return c.done(resourceList, true), ""
	case "resources/templates/list":
		return c.done(`"resourceTemplates":[{"uriTemplate":"fake://{id}","name":"t"}]`, true), ""
	case "resources/read":
		return c.done(fmt.Sprintf(`"contents":[{"uri":%q,"mimeType":"text/plain","text":%s}]`, p.URI, quote("content of "+p.URI+c.s.leak)), true), ""
	case "prompts/list":
		return c.done(promptList, true), ""
	case "prompts/get":
		return c.done(`"messages":[{"role":"user","content":{"type":"text","text":`+string(quote(string(c.m.Params)))+`}}]`, false), ""
	case "completion/complete":
		return c.done(`"completion":{"values":["one","two"],"total":2,"hasMore":false}`, false), ""
	}
	if strings.HasPrefix(c.m.Method, "x/") {
		if len(c.m.Params) == 0 {
			c.m.Params = json.RawMessage("null")
		}
		return c.done(fmt.Sprintf(`"method":%q,"params":%s`, c.m.Method, c.m.Params), false), ""
	}
	return "", fmt.Sprintf(`{"code":-32601,"message":"method not found","data":{"method":%q,"n":1.0}}`, c.m.Method)
}

// done adds the members to a result that the modern era demands.
func (c *call) done(members string, cacheable bool) string {
	switch {
	case !c.isNew:
		return "{" + members + "}"
	case cacheable:
		return `{"resultType":"complete","ttlMs":0,"cacheScope":"private",` + members + `,"_meta":{"io.modelcontextprotocol/serverInfo":` + serverInfo + `}}`
	}
	return `{"resultType":"complete",` + members + `}`
}

// quote returns s as a JSON string that is not escaped for HTML.
func quote(s string) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)
	return []byte(strings.TrimSpace(b.String()))
}
