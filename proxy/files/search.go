package files

import (
	"context"
	"fmt"
)

func (s *Server) searchFiles(ctx context.Context, a *arguments) (string, error) {
	pattern := a.required("pattern")
	name := a.text("path", ".")
	if err := a.err(); err != nil {
		return "", err
	}
	match, err := parseGlob(pattern)
	if err != nil {
		return "", err
	}
	p, err := s.resolve(name)
	if err != nil {
		return "", err
	}
	out := report{limit: maxReport}
	shown, total := 0, 0
	w := walk{s: s, visit: func(_ context.Context, p place, rel string) error {
		if !match(rel) {
			return nil
		}
		if total == shown && shown < maxEntries && out.add(s.show(p)) {
			shown++
		}
		total++
		return nil
	}}
	if err := w.from(ctx, p); err != nil {
		return "", err
	}
	if total == 0 {
		out.note(fmt.Sprintf("no file matches %s; ignored files are only found in a path that is itself ignored", display(pattern)))
	}
	if total > shown {
		out.note(fmt.Sprintf("%d of %d files left out: narrow pattern or path", total-shown, total))
	}
	w.noteUnread(&out)
	return out.String(), nil
}

// noteUnread says how much of the tree could not be searched.
func (w *walk) noteUnread(out *report) {
	if w.unread > 0 {
		out.note(fmt.Sprintf("%d %s could not be read", w.unread, plural(w.unread, "directory", "directories")))
	}
}
