package proxy

import (
	"github.com/google/uuid"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// What Codex says in _meta of each call: the thread that made it, and of a
// subagent's the thread that started it. A thread has a connection of its own.
const (
	metaThread = "threadId"
	metaTurn   = "x-codex-turn-metadata"
	metaParent = "parent_thread_id"
)

// hostThread returns the thread that a call's _meta names, "" for none, and
// whether another started it. It is no evidence of who calls: it only tells
// apart what comes on one connection.
func hostThread(meta []byte) (thread string, spawned bool) {
	thread, _ = rawjson.GetString(meta, metaThread)
	if len(thread) != 36 || uuid.Validate(thread) != nil { // nothing else gets into the trace
		return "", false
	}
	parent, _ := rawjson.GetString(meta, metaTurn, metaParent)
	return thread, parent != "" && parent != thread
}
