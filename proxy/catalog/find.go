package catalog

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
)

// Readable returns the part of a tool's definition that a model reads: name, description and input
// schema, as compact JSON. Hosts show the title and the icons to persons, and keep the rest.
func Readable(definition json.RawMessage) json.RawMessage {
	out := []byte{'{'}
	for _, name := range [...]string{"name", "description", "inputSchema"} {
		if v, ok := rawjson.Get(definition, name); ok {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(append(rawjson.AppendQuote(out, name), ':'), v...)
		}
	}
	return rawjson.Compact(append(out, '}'))
}

// Readable returns the part of a tool's definition that a model reads, without the branch_id that foldgate
// added: call_tool has it.
func (e Entry) Readable() json.RawMessage {
	shown := e.Shown
	if e.TakesBranchID {
		properties, _ := rawjson.Get(shown, "inputSchema", "properties")
		shown = rawjson.Set(shown, rawjson.Delete(properties, branchIDArgument), "inputSchema", "properties")
	}
	return Readable(shown)
}

// Tokens returns what the list costs a model that reads all of it. count counts one definition.
func (c *Catalog) Tokens(count func([]byte) int) int {
	c.counted.Do(func() {
		for _, shown := range c.Order {
			c.tokens += count(Readable(c.entries[shown].Shown))
		}
	})
	return c.tokens
}

// Listed returns the part of a list of tools that hosts get. If they search, it has foldgate's own tools
// and what tools.always names, else all but find_tools and call_tool. A part without tools of servers
// does not depend on their lists. Other lists are whole.
func (c *Catalog) Listed(search bool) *Catalog {
	tools := &c.Rules.cfg.Tools
	if c.kind != Tools || !tools.Searchable() {
		return c
	}
	at := 0
	if search {
		at = 1
	}
	c.listing[at].Do(func() {
		part := c.part(func(shown string, e Entry) bool {
			own := e.Server == ""
			return search && (own || globs.Any(tools.Always, shown)) || !search && !(own && config.ForSearch(shown))
		})
		if search && len(tools.Always) == 0 {
			part.Lists = nil
		}
		part.render(c.Rules.cfg.Authenticates())
		c.listed[at] = part
	})
	return c.listed[at]
}

// The weights of the fields of a definition, and the constants of BM25.
const (
	weightName        = 4.0
	weightTitle       = 2.0
	weightDescription = 1.0
	weightLead        = 1.0 // of the first sentence of the description, besides
	weightParameter   = 0.3
	weightOther       = 0.1  // the descriptions of parameters
	weightOutput      = 0.25 // of what the output schema has, as a part of the weight of a parameter

	saturation = 2.0
	byLength   = 0.5

	weightRelated = 0.5 // of a word related to one of the query
)

// index finds tools by words. It does not change once it is made.
type index struct {
	names    []string   // shown, in the order of the list
	own      [][]string // the words of the server's own name of each
	words    map[string][]posting
	sorted   []string // the words
	lengths  []float64
	meanSize float64
}

// posting is the weight of a word in the tool at a place of the list.
type posting struct {
	at     int
	weight float64
}

// vagueBelow is the part of a query that the best tool accounts for, below which the query is vague.
const vagueBelow = 0.5

// Search returns the names of the tools of servers that have a word of a query, or a related one, the best first, or
// all if the query is empty. Equally good tools are in the order of the list. With a server it finds no tools of others.
// For a vague query, the tools that do not fit follow those that do, which are fit.
func (c *Catalog) Search(query, server string) (names []string, fit int, vague bool) {
	found := c.Order
	if query != "" {
		c.indexed.Do(func() { c.index = newIndex(c) })
		var known float64
		found, known = c.index.find(query)
		vague = known < vagueBelow
	}
	listed := map[string]bool{}
	add := func(found []string) {
		for _, shown := range found {
			if e := c.entries[shown]; !listed[shown] && e.Server != "" && (server == "" || e.Server == server) {
				names, listed[shown] = append(names, shown), true
			}
		}
	}
	add(found)
	fit = len(names)
	if vague {
		add(c.Order)
	}
	return names, fit, vague
}

func newIndex(c *Catalog) *index {
	x := &index{words: map[string][]posting{}}
	for _, shown := range c.Order {
		if e := c.entries[shown]; e.Server != "" {
			x.add(shown, e.Raw)
			x.own = append(x.own, words(e.Name))
		}
	}
	x.sorted = slices.Sorted(maps.Keys(x.words))
	for _, n := range x.lengths {
		x.meanSize += n / float64(len(x.lengths))
	}
	return x
}

func (x *index) add(shown string, definition json.RawMessage) {
	weights, order := map[string]float64{}, []string{}
	add := func(text string, weight float64) {
		for _, w := range words(text) {
			if _, known := weights[w]; !known {
				order = append(order, w)
			}
			weights[w] += weight
		}
	}
	add(shown, weightName)
	title, _ := rawjson.GetString(definition, "title")
	if title == "" {
		title, _ = rawjson.GetString(definition, "annotations", "title")
	}
	add(title, weightTitle)
	description, _ := rawjson.GetString(definition, "description")
	add(description, weightDescription)
	add(Lead(description), weightLead)
	schema, _ := rawjson.Get(definition, "inputSchema")
	parameters(schema, add, 0)
	schema, _ = rawjson.Get(definition, "outputSchema")
	parameters(schema, func(text string, weight float64) { add(text, weight*weightOutput) }, 0)
	size := 0.0
	for _, w := range order {
		x.words[w] = append(x.words[w], posting{len(x.names), weights[w]})
		size += weights[w]
	}
	x.names, x.lengths = append(x.names, shown), append(x.lengths, size)
}

// parameters adds the names and descriptions of the properties of a schema, and of the schemas in it.
func parameters(schema []byte, add func(string, float64), depth int) {
	const deepest = 4
	if depth > deepest {
		return
	}
	properties, _ := rawjson.Get(schema, "properties")
	for m := range rawjson.Members(properties) {
		add(m.Name(), weightParameter)
		text, _ := rawjson.GetString(m.Value, "description")
		add(text, weightOther)
		parameters(m.Value, add, depth+1)
		items, _ := rawjson.Get(m.Value, "items")
		parameters(items, add, depth+1)
	}
}

// find returns the names of the tools that have a word of a query, or a related one, the best first.
// known is how much of the query the best one accounts for, from 0 to 1. A rare word counts for more.
func (x *index) find(query string) (names []string, known float64) {
	var asked []string
	for w := range strings.FieldsSeq(query) {
		asked = append(asked, words(cmp.Or(short[strings.ToLower(w)], w)+" "+wordKind(w))...)
	}
	scores, hits, wanted := make([]float64, len(x.names)), make([]int, len(x.names)), map[string]bool{}
	covered, all := make([]float64, len(x.names)), 0.0 // of the query, in the weights of its words
	for i, word := range asked {
		if slices.Contains(asked[:i], word) {
			continue
		}
		best, share := map[int]float64{}, map[int]float64{} // of a tool the best of the related words counts
		for _, r := range x.related(word) {
			wanted[r.word] = true
			idf := x.idf(r.word)
			for _, p := range x.words[r.word] {
				norm := saturation * (1 - byLength + byLength*x.lengths[p.at]/x.meanSize)
				best[p.at] = max(best[p.at], r.weight*idf*p.weight*(saturation+1)/(p.weight+norm))
				share[p.at] = max(share[p.at], r.weight)
			}
		}
		all += x.idf(word)
		for at, score := range best {
			scores[at] += score
			covered[at] += share[at] * x.idf(word)
			hits[at]++
		}
	}
	var fit []int
	for at := range scores {
		named := 0.0 // the part of the tool's own name that was asked for
		for _, w := range x.own[at] {
			if wanted[w] {
				named += 1 / float64(len(x.own[at]))
			}
		}
		if scores[at] *= float64(hits[at]) * (2 + named); scores[at] > 0 { // several words of a query say more than a rare one
			fit = append(fit, at)
		}
	}
	slices.SortStableFunc(fit, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	for _, at := range fit {
		names = append(names, x.names[at])
	}
	if len(fit) > 0 {
		known = covered[fit[0]] / all
	}
	return names, known
}

// idf is the weight of a word: rare words say more.
func (x *index) idf(word string) float64 {
	n := float64(len(x.words[word]))
	return math.Log(1 + (float64(len(x.names))-n+0.5)/(n+0.5))
}

// relative is a word to look for, and how much it counts.
type relative struct {
	word   string
	weight float64
}

// related returns a word of a query and the words that are looked for in its place: its relatives in the
// thesaurus, and the words that begin with it, such as repository for repo.
func (x *index) related(word string) []relative {
	all := []relative{{word, 1}}
	for _, other := range thesaurus[word] {
		all = append(all, relative{other, weightRelated})
	}
	if len(x.words[word]) == 0 && len(word) > 2 {
		stem := word[:max(min(len(word), 5), len(word)-3)] // also authors for authorship
		at, _ := slices.BinarySearch(x.sorted, stem)
		for ; at < len(x.sorted) && strings.HasPrefix(x.sorted[at], stem); at++ {
			all = append(all, relative{x.sorted[at], weightRelated})
		}
		if bare, ok := strings.CutPrefix(word, "un"); ok && len(x.words[bare]) > 0 {
			all = append(all, relative{bare, weightRelated})
		}
	}
	return all
}

// wordKind returns the kind of thing that a word of a query names by its form, such as file; "" for most words.
func wordKind(w string) string {
	w = strings.Trim(w, `.,;:?!()"'`)
	switch name, ending, dot := strings.Cut(w, "."); {
	case strings.Contains(w, "://"):
		return "url"
	case strings.HasPrefix(w, "#"):
		return "channel"
	case strings.Contains(w, "@"):
		return "user email"
	case w != "" && strings.Trim(w, "0123456789.,-") == "":
		return "number"
	case dot && len(ending) <= 5 && len(ending) > 1 && name != "" && !strings.Contains(ending, "."):
		return "file"
	}
	return ""
}

// thesaurus has, for a word, the others that people say for the same in front of a computer.
var thesaurus = func() map[string][]string {
	groups := []string{
		"show view display print see look read open load get fetch retrieve return dump",
		"list show ls enumerate get",
		"search find look query lookup locate where grep discover",
		"create make new add start open build generate",
		"create write save store put",
		"add append insert put attach",
		"delete remove erase drop discard clear clean forget purge",
		"update change edit modify set alter replace adjust",
		"send post publish tell write say submit share",
		"say message talk chat conversation",
		"reply respond answer",
		"merge combine join integrate",
		"undo revert reset discard restore",
		"move rename relocate",
		"name rename",
		"move transfer",
		"copy clone duplicate fork",
		"run execute start trigger launch evaluate call invoke",
		"stop end cancel abort close shut kill terminate",
		"wait pause sleep delay",
		"press hit push tap",
		"type enter fill input",
		"choose pick select option",
		"go navigate visit browse open",
		"sync synchronize pull fetch update",
		"remember memory know knowledge store",
		"propose request suggest",
		"approve accept review",
		"convert transform translate format",
		"compress zip gzip gz pack archive",
		"directory folder dir subfolder subdirectory",
		"file document",
		"picture image photo screenshot",
		"repository repo project",
		"issue ticket bug",
		"user person people member developer account somebody author",
		"write author",
		"link connect connection relation relationship",
		"text content",
		"info information detail metadata property about",
		"size big large small",
		"error fault failure problem",
		"permission allow permit access",
		"compute calculate count",
		"sum add plus total",
		"repeat echo",
		"check test verify validate",
		"comment note remark discussion",
		"message chat",
		"history past earlier previous before last",
		"back return previous",
		"log message history",
		"download upload get",
		"environment env variable",
		"website site web page url internet online",
		"address url location place",
		"place location spot",
		"near nearby around close local",
		"height high altitude elevation level",
		"latitude longitude coordinate position",
		"distance far",
		"direction route way road path",
		"email mail contact profile",
		"weather forecast temperature",
		"row record entry item",
		"table database column",
		"status state uncommitted change modify",
		"alert dialog popup prompt",
		"news article current",
		"event meeting calendar appointment schedule",
		"money price cost payment",
	}
	general := []string{ // the first is the general word for the others, not the other way round
		"place restaurant shop hotel cafe coffee pizza store museum station airport business mountain city town street",
		"file readme script config",
		"environment variable",
	}
	m := map[string][]string{}
	add := func(w, other string) {
		if other != w && !slices.Contains(m[w], other) {
			m[w] = append(m[w], other)
		}
	}
	for _, group := range groups {
		all := words(group)
		for _, w := range all {
			for _, other := range all {
				add(w, other)
			}
		}
	}
	for _, kind := range general {
		all := words(kind)
		for _, w := range all[1:] {
			add(w, all[0])
		}
	}
	return m
}()

// irregular has the forms of verbs and nouns that stem does not know.
var irregular = func() map[string]string {
	m := map[string]string{}
	for pair := range strings.FieldsSeq("said:say told:tell wrote:write written:write made:make sent:send found:find got:get gotten:get ran:run went:go gone:go kept:keep " +
		"saw:see seen:see took:take taken:take gave:give given:give came:come knew:know known:know began:begin built:build bought:buy chose:choose chosen:choose " +
		"held:hold left:leave lost:lose met:meet paid:pay sold:sell spoke:speak thought:think understood:understand drew:draw drawn:draw hid:hide hidden:hide " +
		"people:person men:man women:woman children:child indices:index matrices:matrix") {
		from, to, _ := strings.Cut(pair, ":")
		m[from] = to
	}
	return m
}()

// short has what abbreviations and commands stand for.
var short = map[string]string{
	"pr": "pull request", "prs": "pull requests", "mr": "merge request", "ls": "list directory", "mkdir": "create directory", "rm": "delete", "mv": "move",
	"cp": "copy", "cat": "read", "stat": "file info", "ps": "processes", "db": "database", "repo": "repository", "repos": "repositories", "dir": "directory", "dirs": "directories",
}

// Lead returns the first sentence of a description.
func Lead(text string) string {
	for i := range len(text) {
		r, rest := text[i], text[i+1:]
		if r == '\n' || r == '.' && (rest == "" || rest[0] == '\n' || len(rest) > 1 && rest[0] == ' ' && rest[1] >= 'A' && rest[1] <= 'Z') {
			return text[:i]
		}
	}
	return text
}

// words returns the words of a text, or of a name such as get_fileInfo, as the index has them: in lower
// case, without endings, and without words that say nothing of a tool.
func words(text string) (found []string) {
	start, last := -1, rune(0)
	end := func(at int) {
		if start >= 0 {
			if w := strings.ToLower(text[start:at]); !stopWords[w] {
				found = append(found, stem(w))
			}
		}
		start = -1
	}
	for i, r := range text {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			end(i)
		case start < 0:
			start = i
		case unicode.IsUpper(r) && unicode.IsLower(last):
			end(i)
			start = i
		}
		last = r
	}
	end(len(text))
	return found
}

// stem takes the common endings off an English word in lower case. What is left need not be a word:
// it only has to be the same for the forms of one.
func stem(w string) string {
	cut := func(ending string, least int) bool {
		rest, ok := strings.CutSuffix(w, ending)
		if ok && len(rest) >= least {
			w = rest
			return true
		}
		return false
	}
	if base, ok := irregular[w]; ok {
		w = base
	}
	switch {
	case strings.HasSuffix(w, "ies") && len(w) > 4:
		w = w[:len(w)-3] + "y"
	case strings.HasSuffix(w, "ss"), strings.HasSuffix(w, "us"), strings.HasSuffix(w, "is"):
	case strings.HasSuffix(w, "sses"), strings.HasSuffix(w, "ches"), strings.HasSuffix(w, "shes"), strings.HasSuffix(w, "xes"):
		w = w[:len(w)-2]
	default:
		cut("s", 3)
	}
	if cut("ing", 3) || cut("ed", 3) {
		if n := len(w); w[n-1] == w[n-2] && !strings.ContainsRune("aeiouls", rune(w[n-1])) {
			w = w[:n-1] // stopped, getting
		}
	} else {
		_ = cut("ion", 4) || cut("er", 4)
	}
	cut("e", 3)
	return w
}

// stopWords say nothing of a tool.
var stopWords = func() map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq("a an the of to in on for and or with from by is are was were be been it its this that these those " +
		"my me i we you your our us what which who whom where when how why do does did can could may might should would will if then at as into " +
		"about not no any some there here have has had s t so than too very just also only such their they them he she his her please want need") {
		m[w] = true
	}
	return m
}()
