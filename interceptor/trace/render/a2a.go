package render

import (
	"cmp"
	"encoding/json"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// The JSON form of tasks in the A2A protocol 1.0 (specification/a2a.proto,
// ListTasksResponse). A step of a workflow is a task, its workflow the task's
// context, a call's envelope id the id of a message, its result an artifact.
type a2aTasks struct {
	Tasks         []*a2aTask `json:"tasks"`
	NextPageToken string     `json:"nextPageToken"` // always "": there is one page
	PageSize      int        `json:"pageSize"`
	TotalSize     int        `json:"totalSize"`
}

type a2aTask struct {
	ID        string            `json:"id"`
	ContextID string            `json:"contextId"`
	Status    a2aStatus         `json:"status"`
	Artifacts []a2aArtifact     `json:"artifacts,omitempty"`
	History   []a2aMessage      `json:"history,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
}

type a2aStatus struct {
	State     string      `json:"state"`
	Message   *a2aMessage `json:"message,omitempty"`
	Timestamp string      `json:"timestamp"`
}

type a2aMessage struct {
	MessageID        string    `json:"messageId"`
	ContextID        string    `json:"contextId"`
	TaskID           string    `json:"taskId"`
	Role             string    `json:"role"`
	Parts            []a2aPart `json:"parts"`
	ReferenceTaskIDs []string  `json:"referenceTaskIds,omitempty"`
}

type a2aArtifact struct {
	ArtifactID string    `json:"artifactId"`
	Name       string    `json:"name,omitempty"`
	Parts      []a2aPart `json:"parts"`
}

// a2aPart is a text or data; exactly one is set.
type a2aPart struct {
	Text string          `json:"text,omitempty"`
	Data json.RawMessage `json:"data,omitempty"`
}

var a2aStates = map[string]string{
	"working": "TASK_STATE_WORKING", "completed": "TASK_STATE_COMPLETED", "failed": "TASK_STATE_FAILED", "canceled": "TASK_STATE_CANCELED",
	"rejected": "TASK_STATE_REJECTED", "input_required": "TASK_STATE_INPUT_REQUIRED",
	"interrupted": "TASK_STATE_UNSPECIFIED", // the protocol's term for an unknown state
}

// writeA2A writes the steps among records as the answer to a ListTasks, in the
// order of their first records. It leaves out other records.
func writeA2A(w io.Writer, records iter.Seq[*trace.Record]) error {
	out := a2aTasks{Tasks: []*a2aTask{}}
	byID := map[string]*a2aTask{}
	caused := map[string]string{} // task ids by envelope id
	for r := range records {
		if r.Audit == nil {
			continue
		}
		id, _ := rawjson.GetString(r.Audit.Workflow, "a2a", "taskId")
		if id == "" || r.Kind != trace.KindRequest+"tools/call" && r.Kind != trace.KindResponse+"tools/call" {
			continue
		}
		t := byID[id]
		if t == nil {
			t = &a2aTask{ID: id, Metadata: map[string]string{}}
			t.ContextID, _ = rawjson.GetString(r.Audit.Workflow, "a2a", "contextId")
			for _, key := range []string{"name", "path", "step"} {
				t.Metadata["io.github.foldgate/"+key], _ = rawjson.GetString(r.Audit.Workflow, key)
			}
			byID[id] = t
			out.Tasks = append(out.Tasks, t)
		}
		caused[r.ID] = id
		status, _ := rawjson.GetString(r.Audit.Workflow, "status")
		t.Status = a2aStatus{State: cmp.Or(a2aStates[status], "TASK_STATE_UNSPECIFIED"), Timestamp: r.TS}
		m := a2aMessage{MessageID: r.ID, ContextID: t.ContextID, TaskID: t.ID, Role: "ROLE_AGENT", Parts: resultParts(r.Payload)}
		switch {
		case strings.HasPrefix(r.Kind, trace.KindRequest):
			t.request(m, r, caused)
		case r.Audit.IsError:
			t.Status.Message = &m
		default:
			t.Artifacts = append(t.Artifacts, a2aArtifact{ArtifactID: r.ID, Name: r.Audit.Tool, Parts: m.Parts})
		}
	}
	out.PageSize, out.TotalSize = len(out.Tasks), len(out.Tasks)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

// request adds the message of a call to the task's history.
func (t *a2aTask) request(m a2aMessage, r *trace.Record, caused map[string]string) {
	data := rawjson.Set([]byte(`{}`), rawjson.Quote(r.Audit.Tool), "tool")
	if args, ok := rawjson.Get(r.Payload, "params", "arguments"); ok {
		data = rawjson.Set(data, args, "arguments")
	}
	m.Role, m.Parts = "ROLE_USER", []a2aPart{{Data: data}}
	for _, id := range r.CorrelationID {
		if ref := caused[id]; ref != "" && ref != t.ID && !slices.Contains(m.ReferenceTaskIDs, ref) {
			m.ReferenceTaskIDs = append(m.ReferenceTaskIDs, ref)
		}
	}
	t.History = append(t.History, m)
}

// resultParts returns the structured content of a result, else its blocks.
func resultParts(payload json.RawMessage) (parts []a2aPart) {
	if text, ok := rawjson.GetString(payload, "error", "message"); ok {
		return []a2aPart{{Text: text}}
	}
	if structured, ok := rawjson.Get(payload, "result", "structuredContent"); ok {
		return []a2aPart{{Data: structured}}
	}
	content, _ := rawjson.Get(payload, "result", "content")
	for b := range rawjson.Elements(content) {
		if text, ok := rawjson.GetString(b, "text"); ok && text != "" {
			parts = append(parts, a2aPart{Text: text})
		} else {
			parts = append(parts, a2aPart{Data: b})
		}
	}
	if parts == nil { // the journal keeps no payloads
		parts = []a2aPart{{Data: json.RawMessage(`{}`)}}
	}
	return parts
}
