package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/pins"
)

// gateways returns the gateways that run on the state directory, none of a copy.
func (c *Console) gateways(ctx context.Context) []*control.Client {
	if c.o.State == "" {
		return nil
	}
	found, err := control.Find(ctx, c.o.State)
	if err != nil {
		c.o.Log.Debug("no gateway takes commands", "err", err)
	}
	return found
}

// limit is a limit for one subject in one unit.
type limit struct {
	control.Budget
	control.Quantity
	Server, Tool string // of a limit for a tool
	Percent      int64
	Trend        []bar // by day
	Table        int   // the number of the table of Trend
}

// maxTrends bounds the limits of which a page shows the trend.
const maxTrends = 20

// budgets is the page of limits.
func (c *Console) budgets(r *request) error {
	states, where, err := c.limits(r.Context())
	d := map[string]any{"Where": where, "Q": r.query}
	if err != nil {
		d["Error"] = err.Error()
	}
	only, subject := r.query.Get("limit"), r.query.Get("subject")
	tools, err := c.shownTools(r.Context(), states)
	if err != nil {
		return err
	}
	var all []limit
	for _, s := range states {
		if only != "" && s.Limit != only || subject != "" && s.Subject != subject {
			continue
		}
		for _, u := range s.Quantities() {
			l := limit{Budget: s, Quantity: u, Percent: 100 * u.Used / u.Total}
			if t := tools[s.Subject]; s.Per == "tool" {
				l.Server, l.Tool = t[0], cmp.Or(t[1], s.Subject)
			}
			all = append(all, l)
		}
	}
	slices.SortStableFunc(all, func(a, b limit) int { return cmp.Compare(b.Percent, a.Percent) })
	_, _, last, err := c.trace.Extent(r.Context())
	if err != nil {
		return err
	}
	for i := range all[:min(len(all), maxTrends)] {
		l := &all[i]
		if l.Model || l.Subject == "" && l.Per != "all" { // the sums have no model tokens, and no records without a name alone
			continue
		}
		f := query.SumFilter{Since: last.Add(-30 * day)}
		switch l.Per {
		case "principal":
			f.Principal = l.Subject
		case "team":
			f.Team = l.Subject
		case "tool":
			f.Server, f.Tool = l.Server, l.Tool
		case "server":
			f.Server = l.Subject
		case "all":
		default: // such as a session, which the sums do not have
			continue
		}
		rows, err := c.trace.Sums(r.Context(), f, "day")
		if err != nil {
			return err
		}
		l.Table = i + 1
		l.Trend = barsOf(rows, "day")
	}
	d["Limits"] = all
	return c.show(r, http.StatusOK, "budgets", "Budgets", d)
}

// limits returns what the limits have left, from a gateway that runs, else from their store.
func (c *Console) limits(ctx context.Context) (all []control.Budget, where string, err error) {
	if found := c.gateways(ctx); len(found) > 0 {
		all, err = found[0].Budgets(ctx, "")
		return all, "gateway", err
	}
	if c.o.Budgets == nil {
		return nil, "", nil
	}
	all, err = c.o.Budgets(ctx)
	return all, "store", err
}

// Records returns the address of the records of a limit's subject, with further filters.
func (l limit) Records(pairs ...string) string { return to(append(pairs, l.Names()...)...) }

// Names returns the filters for a limit's subject: pairs of a name and a value.
func (l limit) Names() []string {
	switch l.Per {
	case "principal", "team", "session", "server":
		return []string{l.Per, l.Subject}
	case "tool":
		return []string{"server", l.Server, "tool", l.Tool}
	}
	return nil
}

// shownTools returns the server of each tool in the trace and its name there, by the name that hosts see:
// limits for tools have that. It is empty if no limit is for a tool.
func (c *Console) shownTools(ctx context.Context, states []control.Budget) (map[string][2]string, error) {
	if !slices.ContainsFunc(states, func(s control.Budget) bool { return s.Per == "tool" }) {
		return nil, nil
	}
	rows, err := c.trace.Sums(ctx, query.SumFilter{}, "server", "tool")
	tools := make(map[string][2]string, len(rows))
	for _, row := range rows {
		server, tool := row.Names[0], row.Names[1]
		tools[c.o.Shown(server, tool)] = [2]string{server, tool}
	}
	return tools, err
}

// people is the page of people, or of teams.
func (c *Console) people(r *request) error {
	s, err := c.spanOf(r)
	if err != nil {
		return err
	}
	s.wholeDays()
	by, err := r.oneOf("by", "principal", "team")
	if err != nil {
		return err
	}
	who := r.query.Get(by)
	f := query.SumFilter{Since: s.Since, Until: s.Until}
	if by == "team" {
		f.Team = who
	} else {
		f.Principal, f.Team = who, r.query.Get("team")
	}
	d := map[string]any{
		"Span": s, "By": by, "Who": who, "Team": f.Team, "Since": s.Since.Format(time.RFC3339), "Until": s.Until.Format(time.RFC3339),
		"Persons": address("/people", r.query, "by", "", "principal", "", "team", ""), "Teams": address("/people", r.query, "by", "team", "principal", "", "team", ""),
	}
	if who == "" {
		rows, err := c.trace.Sums(r.Context(), f, by)
		if err != nil {
			return err
		}
		rows = slices.DeleteFunc(rows, func(row query.SumRow) bool { return row.Names[0] == "" })
		slices.SortStableFunc(rows, func(a, b query.SumRow) int { return cmp.Compare(b.Delivered, a.Delivered) })
		d["More"], d["Rows"] = max(len(rows)-maxRows, 0), rows[:min(len(rows), maxRows)]
		return c.show(r, http.StatusOK, "people", map[string]string{"principal": "People", "team": "Teams"}[by], d)
	}
	days, err := c.trace.Sums(r.Context(), f, "day")
	if err != nil {
		return err
	}
	tools, err := c.trace.Sums(r.Context(), f, "server", "tool")
	if err != nil {
		return err
	}
	tools = slices.DeleteFunc(tools, func(row query.SumRow) bool { return row.Names[1] == "" })
	slices.SortStableFunc(tools, func(a, b query.SumRow) int { return cmp.Compare(b.Delivered, a.Delivered) })
	d["Bars"], d["MoreTools"], d["Tools"] = barsOf(days, "day"), max(len(tools)-maxRows, 0), tools[:min(len(tools), maxRows)]
	return c.show(r, http.StatusOK, "people", short(who), d)
}

// maxRows bounds the rows of a table of sums.
const maxRows = 500

// toolRow is a tool with its sums and its pin.
type toolRow struct {
	Server, Name, Kind string
	query.Sums
	Cost  int // tokens of its definition
	Pin   *pins.Pin
	Link  string
	Waits bool
}

// tools is the page of tools and their definitions.
func (c *Console) tools(r *request) error {
	s, err := c.spanOf(r)
	if err != nil {
		return err
	}
	s.wholeDays()
	rows, err := c.trace.Sums(r.Context(), query.SumFilter{Since: s.Since, Until: s.Until, Server: r.query.Get("server")}, "server", "tool")
	if err != nil {
		return err
	}
	var all []toolRow
	at := map[[2]string]int{}
	for _, row := range rows {
		if row.Names[1] != "" {
			at[[2]string(row.Names)] = len(all)
			all = append(all, toolRow{Server: row.Names[0], Name: row.Names[1], Kind: "tool", Sums: row.Sums})
		}
	}
	d := map[string]any{"Span": s, "Since": s.Since.Format(time.RFC3339), "Until": s.Until.Format(time.RFC3339), "Server": r.query.Get("server")}
	var pinned []pins.Pin
	if c.pins != nil {
		if pinned, err = c.pins.List(); err != nil {
			d["Error"] = err.Error()
		}
	}
	for _, p := range pinned {
		if s := r.query.Get("server"); s != "" && p.Server != s {
			continue
		}
		i, known := at[[2]string{p.Server, p.Name}]
		if !known || p.Kind != pins.Tool || all[i].Pin != nil { // each definition that waits has a row
			i = len(all)
			all = append(all, toolRow{Server: p.Server, Name: p.Title(), Kind: string(p.Kind)})
		}
		all[i].Pin = &p
		all[i].Cost = c.cost(p)
		all[i].Waits = p.State != pins.Approved
		all[i].Link = pinLink(p)
	}
	slices.SortStableFunc(all, func(a, b toolRow) int {
		waits := func(t toolRow) int { return map[bool]int{true: 1}[t.Waits] }
		return cmp.Or(cmp.Compare(waits(b), waits(a)), cmp.Compare(b.Delivered, a.Delivered), cmp.Compare(b.Calls, a.Calls))
	})
	d["More"], d["Rows"] = max(len(all)-maxRows, 0), all[:min(len(all), maxRows)]
	return c.show(r, http.StatusOK, "tools", "Tools", d)
}

// cost returns the tokens of a definition, which it counts once.
func (c *Console) cost(p pins.Pin) int {
	c.mu.Lock()
	n, known := c.costs[p.SHA256]
	c.mu.Unlock()
	if !known {
		n = c.o.Count(string(p.Is))
		c.mu.Lock()
		if len(c.costs) >= maxCosts {
			clear(c.costs)
		}
		c.costs[p.SHA256] = n
		c.mu.Unlock()
	}
	return n
}

// maxCosts bounds the definitions whose tokens are kept.
const maxCosts = 100_000

func pinLink(p pins.Pin) string {
	return address("/definition", nil, "server", p.Server, "kind", string(p.Kind), "name", p.Name, "sha256", p.SHA256)
}

// findPin returns the definition that an address or a form names: of several that wait under one name the
// one with the digest, or the oldest.
func (c *Console) findPin(get func(string) string) (pins.Pin, error) {
	var named []pins.Pin
	if c.pins != nil {
		all, err := c.pins.List()
		if err != nil {
			return pins.Pin{}, err
		}
		named = slices.DeleteFunc(all, func(p pins.Pin) bool {
			return p.Server != get("server") || string(p.Kind) != get("kind") || p.Name != get("name")
		})
	}
	if len(named) == 0 {
		return pins.Pin{}, problemf(http.StatusNotFound, "no definition %.80q of %.80q is pinned", get("name"), get("server"))
	}
	return named[max(0, slices.IndexFunc(named, func(p pins.Pin) bool { return p.SHA256 == get("sha256") }))], nil
}

// definition is the page of one definition and how it differs from the approved one.
func (c *Console) definition(r *request) error {
	p, err := c.findPin(r.query.Get)
	if err != nil {
		return err
	}
	type line struct{ Mark, Text string }
	var lines []line
	for _, l := range p.Diff() {
		lines = append(lines, line{l[:1], l[1:]})
	}
	return c.show(r, http.StatusOK, "definition", "Definition", map[string]any{"P": p, "Name": p.Title(), "Lines": lines, "Waits": p.State != pins.Approved, "Calls": to("server", p.Server, "tool", p.Name)})
}
