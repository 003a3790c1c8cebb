package console

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/pins"
)

// operate returns the handler of a form that changes something: for operators, of a page of their
// session. what does it and tells the outcome, which the next page shows.
func (c *Console) operate(what func(r *request) (done, back string, err error)) func(*request) error {
	return func(r *request) error {
		if err := r.checkForm(); err != nil {
			return err
		}
		if !r.session.Operator {
			return problemf(http.StatusForbidden, "only operators may do this")
		}
		done, back, err := what(r)
		if err != nil {
			return problemf(http.StatusConflict, "%v", err)
		}
		c.o.Log.Info("an operator changed something", "principal", r.session.Principal, "did", done)
		c.mu.Lock()
		r.session.said = done
		c.mu.Unlock()
		c.change()
		http.Redirect(r.w, r.Request, back, http.StatusSeeOther)
		return nil
	}
}

// endBranch ends an open branch at the gateway that has it.
func (c *Console) endBranch(r *request) (done, back string, err error) {
	path := r.PostFormValue("path")
	id := path[strings.LastIndexByte(path, '/')+1:]
	for _, g := range c.gateways(r.Context()) {
		g.By = r.session.Principal
		_, err := g.EndBranch(r.Context(), id, strings.TrimSpace(r.PostFormValue("reason")))
		if errors.Is(err, control.ErrNoBranch) {
			continue
		}
		return "The branch has ended.", branchLink(path), err
	}
	return "", "", errors.New("no gateway that runs has this branch open")
}

// resetBudget sets what a subject has used of a limit to 0.
func (c *Console) resetBudget(r *request) (done, back string, err error) {
	found := c.gateways(r.Context())
	if len(found) == 0 {
		return "", "", errors.New("no gateway that takes commands runs on the state directory")
	}
	found[0].By = r.session.Principal
	n, err := found[0].ResetBudget(r.Context(), r.PostFormValue("limit"), r.PostFormValue("subject"))
	done = number(n) + " counts are 0 again."
	if n == 1 {
		done = "1 count is 0 again."
	}
	return done, "/budgets", err
}

// approve approves a definition as the operator saw it.
func (c *Console) approve(r *request) (done, back string, err error) {
	p, err := c.findPin(r.PostFormValue)
	if err != nil {
		return "", "", err
	}
	if p.SHA256 != r.PostFormValue("sha256") {
		return "", "", errors.New("the definition has changed since the page was loaded: look at it again")
	}
	approved, err := c.pins.Approve(r.Context(), r.session.Principal, []pins.Pin{p})
	switch {
	case err != nil:
		return "", "", err
	case len(approved) == 0:
		return "It was approved before.", pinLink(p), nil
	case p.State == pins.Gone:
		return "The definition is forgotten.", "/tools", nil
	}
	return "The definition is approved.", pinLink(p), nil
}

// export answers with the selected records of a journal and their proof. There is one export at a time,
// since it can read the whole journal.
func (c *Console) export(r *request) error {
	f, err := c.filter(r)
	if err != nil {
		return err
	}
	journal := 1
	if text := r.query.Get("of"); text != "" {
		if journal, err = strconv.Atoi(text); err != nil || journal < 1 || journal > len(c.o.Dirs) {
			return problemf(http.StatusBadRequest, "of: %.20q is not the number of a journal", text)
		}
	}
	if !c.exporting.TryLock() {
		return problemf(http.StatusTooManyRequests, "another export is being made: try again when it is done")
	}
	defer c.exporting.Unlock()
	c.recordRead(r, "export", r.query.Encode())
	r.w.Header().Set("Content-Type", "application/jsonl")
	r.w.Header().Set("Content-Disposition", `attachment; filename="foldgate-`+time.Now().UTC().Format("20060102-150405")+`.jsonl"`)
	if err := query.Export(r.Context(), control.PatientWriter{ResponseWriter: r.w}, c.o.Dirs[journal-1], f); err != nil {
		if r.Context().Err() == nil {
			c.o.Log.Error("an export was not finished", "err", err)
		}
		panic(http.ErrAbortHandler) // a part must not look like the whole
	}
	return nil
}
