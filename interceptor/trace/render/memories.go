package render

import (
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// memory is what a branch taught: a line of the format [Memories].
type memory struct {
	Type        string        `json:"type"` // pattern or anti_pattern
	Description string        `json:"description"`
	Lesson      string        `json:"lesson"`           // the message; of a failed branch without one, its digest
	Outcome     string        `json:"outcome"`          // success or failure
	Reason      string        `json:"reason,omitempty"` // of a failure
	Tools       []*memoryTool `json:"tools,omitempty"`
	Tokens      int           `json:"tokens"`
	Budget      int           `json:"budget"`
	Branch      string        `json:"branch"` // the context path
	Session     string        `json:"session,omitempty"`
	Principal   string        `json:"principal,omitempty"`
	TS          string        `json:"ts"`       // of the end
	Evidence    []string      `json:"evidence"` // ids of records: the push, calls, the conclusion, the pop
}

type memoryTool struct {
	Tool   string `json:"tool"`
	Calls  int    `json:"calls"`
	Failed int    `json:"failed,omitempty"`
}

// Bounds of one memory.
const (
	maxEvidence    = 32
	maxMemoryTools = 16
)

// lessons are the reasons of ends that say something about the way in which a branch worked. Other forced
// ends, such as that of its session, teach nothing.
var lessons = []string{"budget_exhausted", "timeout", "model_failed"}

// batchSession starts the session of a branch that a branch_run opened for itself.
const batchSession = "run_"

// writeMemories writes what ended branches taught, in the order of their ends: a pattern of each that
// returned a message, an anti-pattern of each that failed.
func writeMemories(w io.Writer, records iter.Seq[*trace.Record]) error {
	open, order := map[string]*memory{}, []*memory(nil)
	for r := range records {
		m, a := open[r.Context], r.AuditOrEmpty()
		text := func(name string) string { s, _ := rawjson.GetString(r.Payload, name); return s }
		if r.Kind == trace.KindPush && !strings.HasPrefix(a.Session, batchSession) {
			m = &memory{Description: text("description"), Branch: r.Context, Session: a.Session, Principal: a.Principal}
			open[r.Context] = m
		}
		if m == nil {
			continue
		}
		switch {
		case r.Kind == trace.KindResponse+"tools/call" && a.Tool != "" && a.Server != "":
			m.add(strings.TrimSpace(a.Server+" "+a.Tool), a.IsError || r.Blocked())
		case r.Kind == trace.KindConclusion:
			m.Lesson = text("decision")
		case r.Kind == trace.KindPop:
			m.TS, m.Outcome, m.Type = r.TS, "success", "pattern"
			if a.Tokens != nil {
				m.Tokens, m.Budget = a.Tokens.Used, a.Tokens.Budget
			}
			if reason := text("reason"); reason != "returned" {
				m.Outcome, m.Type, m.Reason = "failure", "anti_pattern", reason
			}
			if m.Lesson == "" && m.Reason != "" {
				m.Lesson = strings.TrimPrefix(text("error")+"; "+text("digest"), "; ")
			}
			order = append(order, m)
		case r.Kind != trace.KindPush:
			continue
		}
		if len(m.Evidence) < maxEvidence || r.Kind == trace.KindConclusion || r.Kind == trace.KindPop {
			m.Evidence = append(m.Evidence, r.ID)
		}
	}
	for _, m := range order {
		if m.Description == "" || strings.TrimSpace(m.Lesson) == "" || m.Reason != "" && !slices.Contains(lessons, m.Reason) {
			continue
		}
		if _, err := w.Write(append(rawjson.Marshal(m), '\n')); err != nil {
			return err
		}
	}
	return nil
}

// add counts a call of a tool.
func (m *memory) add(tool string, failed bool) {
	i := slices.IndexFunc(m.Tools, func(t *memoryTool) bool { return t.Tool == tool })
	if i < 0 {
		if i = len(m.Tools); i == maxMemoryTools {
			return
		}
		m.Tools = append(m.Tools, &memoryTool{Tool: tool})
	}
	m.Tools[i].Calls++
	if failed {
		m.Tools[i].Failed++
	}
}
