package router

import (
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
)

type task struct {
	server string // its key
	tool   string
	branch string // id of the branch that pays for the result; "" in main
}

type tasks struct {
	byID map[string]task
	ids  []string // oldest first
}

// maxTasks is how many tasks a session remembers. It forgets the oldest first. The server of a
// forgotten task is found by asking each, and the caller pays.
const maxTasks = 1000

// task returns the task with that id, the zero value if it is not known.
func (s *Session) task(id string) task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks.byID[id]
}

// noteTask remembers the server that made a task, and by which call.
func (s *Session) noteTask(result []byte, c *interceptor.Call) {
	if _, asked := rawjson.Get(c.Target.Params, "task"); !asked && !strings.HasPrefix(c.Target.Method, "tasks/") {
		return
	}
	id, ok := rawjson.GetString(result, "task", "taskId")
	if !ok {
		if id, ok = rawjson.GetString(result, "taskId"); !ok {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, known := s.tasks.byID[id]
	if !known {
		if len(s.tasks.ids) == maxTasks {
			delete(s.tasks.byID, s.tasks.ids[0])
			s.tasks.ids = slices.Delete(s.tasks.ids, 0, 1)
		}
		s.tasks.ids = append(s.tasks.ids, id)
	}
	if t.server = c.Target.Server; c.Target.Method == "tools/call" {
		if t.tool = c.Target.Name; c.Attribution.Branch != nil {
			t.branch = c.Attribution.Branch.ID
		}
	}
	if s.tasks.byID == nil {
		s.tasks.byID = map[string]task{}
	}
	s.tasks.byID[id] = t
}
