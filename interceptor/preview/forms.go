package preview

import (
	"regexp"
	"strings"
	"sync"
)

// A form is how the lines of a sort of text look. It recognizes the sort and reads its entries: the
// named groups of its expressions are fields.
type form struct {
	kind  Kind
	noun  string
	entry string   // an expression for the first line of an entry
	more  string   // an expression for its further lines. A group "in_x" is the field x of the entries behind it
	share float64  // the least part of the sampled lines that fits entry or more
	least int      // the least number of sampled lines that fit entry
	first bool     // the first line fits entry
	lead  string   // the field of which the first entry of each value is shown
	brief []string // the fields that stand for an entry of several lines
	many  string   // the field of which an entry may have several values
	order string   // the field of which equal values follow each other, and numbers rise

	entryRE, moreRE *regexp.Regexp // of entry and more; moreRE is nil without more
}

// forms are tried in this order.
var forms = sync.OnceValue(func() []*form {
	all := []*form{
		{kind: GitLog, noun: "commit", first: true, least: 1, brief: []string{"commit", "subject"}, many: "path",
			entry: `^[*|\\/ ]*commit (?P<commit>[0-9a-f]{7,40})\b`,
			more:  `^[|\\/ ]*(?:Author: +(?P<author>.*?) <|(?:Author)?Date: +(?P<date>.*)|    (?P<subject>\S.*)|diff --git a/(?P<path>\S+)| (?P<path2>\S+) +\| +(?:\d+|Bin))`},
		{kind: Blame, noun: "blamed line", share: 0.9, least: 4,
			entry: `^\^?(?P<commit>[0-9a-f]{7,40}) (?:\S+ +)?\((?P<author>.+?) +(?P<date>\d{4}-\d\d-\d\d [\d:]+ [+-]\d{4}) +\d+\)`},
		{kind: GitLog, noun: "commit", share: 0.8, least: 4, many: "path",
			more:  `^(?:[ACDMRTU]\d*\t)?(?P<path>[\w@~+-]*[./][^\s:;,"'{}()=<>]*)$`,
			entry: `^[*|\\/_ ]*(?P<commit>[0-9a-f]{7,40}) (?:\((?P<refs>[^)]*)\) |\S+@\{\d+\}: )?(?P<prefix>[\w./-]+(?:\([^)]*\))?!?: )?\S`},
		{kind: Diff, noun: "changed file", share: 0.95, least: 4, entry: `^(?P<status>[ACDMRTU]\d*)\t(?P<path>\S.*)$`},
		{kind: Stacks, noun: "goroutine", least: 2, share: 0.02, brief: []string{"state", "frame"}, lead: "frame",
			entry: `^goroutine \d+[^\[]*\[(?P<state>[^\],]+)`, more: `^(?P<frame>[\w./*()\[\]-]+)\(`},
		{kind: Stacks, noun: "thread", least: 2, share: 0.02, brief: []string{"name", "state", "frame"}, lead: "frame",
			entry: `^"(?P<name>[^"]+)".* (?:nid|tid|prio)=`, more: `^\s+(?:java.lang.Thread.State: (?P<state>\w+)|at (?P<frame>[\w.$<>/@]+)\()`},
		{kind: Stacks, noun: "thread", least: 2, share: 0.02, brief: []string{"name", "frame"}, lead: "frame",
			entry: `^(?:(?:Current )?[Tt]hread (?P<name>\S+.*)|Thread \d+ \(.*)`, more: `^(?:  File "(?P<path>[^"]+)", line \d+,? in (?P<frame>\S+)|#0 .*? in (?P<frame2>\S+) |    (?P<frame3>\S+) \(\S+:\d+\)$)`},
		{kind: Stacks, noun: "error", least: 2, share: 0.5, brief: []string{"message"}, lead: "error",
			entry: `^(?:Uncaught |Caused by: |Exception in thread "[^"]*" )?(?P<message>(?P<error>[\w.$]*(?:Error|Exception))(?: \[(?P<code>\w+)\])?: .+)`,
			more:  `^\s+(?:at |\.{3} \d+ more|File "|code: '(?P<code2>\w+)'|  \S)|^Traceback |^(?:During handling|The above exception)`},
		{kind: Stacks, noun: "frame", share: 0.3, least: 3,
			entry: `^ *#(?P<number>\d+) +(?:0x[0-9a-f]+ (?:in )?)?(?P<function>[^\s(]+) ?\((?:.*? at (?P<path>[^\s:]+):\d+|.* from (?P<library>\S+)|.*)`, more: `^\s+[\w.]+ = |^No (?:locals|symbol)`},
		{kind: Stacks, noun: "frame", share: 0.5, least: 3,
			entry: `^(?:\s+at (?:async )?(?P<function>[^\s(]+(?: \[as \w+\])?) ?\(.*|\s+from (?P<path>[^\s:]+):\d+:in .*|\s+\d+: (?:0x[0-9a-f]+ - )?(?P<function2>[A-Za-z_<]\S*(?:::.*)?))$`, more: `^\s+at \S+:\d+`},
		{kind: Log, noun: "request", share: 0.8, least: 3, lead: "status",
			entry: `^\S+ \S+ \S+ \[(?P<time>[^\]]+)\] "(?P<method>[A-Z]+) (?P<url>[^ ?"]+)[^"]*" (?P<status>\d{3}) (?P<bytes>\d+)?`},
		{kind: Listing, noun: "entry", share: 0.8, least: 3,
			entry: `^ *(?:\d+ +\d+ +)?(?P<type>[-dlbcpsD])[-rwxsStT]{9}[.+@]? +(?:\d+ +)?(?P<owner>[\w.+-]+)[ /]+(?P<group>[\w.+-]+) +(?P<size>[\d.,]+[KMGT]?) +(?P<date>(?:\w+ +\d+|\d{4}-\d\d-\d\d) +[\d:.]+)(?: [+-]\d{4})? +(?P<path>.+?)(?: -> .*)?$`,
			more:  `^(?:(?P<in_directory>\S.*):|total [\d.]+\w?)$`},
		{kind: Listing, noun: "package", share: 0.8, least: 3,
			entry: `^(?P<state>[uirph][ncHUFWti ][R ]?) +(?P<package>\S+) +(?P<version>\S+) +(?P<architecture>\S+) +\S`},
		{kind: Listing, noun: "package", share: 0.9, least: 4,
			entry: `^(?P<package>[\w.+:-]+)/(?P<suite>[\w.,-]+) (?P<version>\S+) (?P<architecture>\w+)(?: \[(?P<state>.*)\])?$`, more: `^Listing\.\.\.`},
		{kind: Listing, noun: "branch", share: 0.9, least: 4, entry: `^[*+ ] (?P<branch>\S+) +(?P<commit>[0-9a-f]{7,40}) (?P<subject>.+)$`},
		{kind: Listing, noun: "page", share: 0.9, least: 4, entry: `^(?P<page>\S+) \((?P<section>\w+)\) +- \S`},
		{kind: Listing, noun: "library", share: 0.9, least: 3, entry: `^\t(?P<library>\S+)(?: \(.*\))?(?: => (?P<path>\S+|not found))?(?: \(0x\w+\))?$`, more: `^(?P<in_program>\S+):$|^\d+ libs found`},
		{kind: Listing, noun: "object", share: 0.9, least: 4,
			entry: `^(?P<mode>\d{6}) (?P<type>blob|tree|commit) [0-9a-f]{40}(?: +(?P<size>\d+|-))?\s+(?P<path>.+)$`},
		{kind: Listing, noun: "entry", share: 0.7, least: 4, entry: `^[│|\x{a0} ]*(?:[├└][─┬]+|[|+` + "`" + `]--) (?:(?P<state>[A-Z ]{5,}) )?(?P<name>@?[^@\s]*)(?:\S*(?: (?P<mark>[a-z]+))?$)?`},
		{kind: Listing, noun: "element", share: 0.6, least: 4, lead: "role", // of a page, as servers for browsers print it
			entry: `^\s*(?:uid=\S+ (?P<role>\w+)|- (?P<role2>\w+).* \[ref=\w+\])`, more: `^\s*- (?:/?\w+|"|')`},
		{kind: Table, noun: "sample", share: 0.95, least: 4, lead: "metric",
			entry: `^(?P<metric>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>[-+]?[\d.]+(?:[eE][-+]?\d+)?|[-+]?Inf|NaN)(?: \d+)?$`, more: `^# (?:HELP|TYPE|EOF)`},
		{kind: Listing, noun: "path", share: 0.9, least: 4, entry: `^(?:\[(?P<type>DIR|FILE|LINK|SYMLINK|OTHER)\] (?P<path2>.+)|(?:[ MADRCU?!]{2} )?(?P<path>(?:\w+:/[^\s]*|(?:[\w.@~+-]*/|[\w@~+-]*[A-Za-z_][\w@~+-]*\.))(?:[^\s:;,"'{}()=<>/]+/?)*|\.{0,2}/[^\s:;,"'{}=<>]+(?: [^\s:;,"'{}=<>-][^\s:;,"'{}=<>]*)*))$`},
		{kind: Compiler, noun: "diagnostic", share: 0.15, least: 2, lead: "code",
			entry: `^(?P<path>[^\s:()][^:()]*?)(?:[:(]\d+(?:[:,.]\d+)?\)?)?(?::| -)\s*(?:(?P<severity>(?i:fatal error|error|warning|note|info|hint|style))\b:?\s*(?:\[?(?P<code>[A-Z]{1,6}-?\d{2,5})\]?:?\s)?|(?P<code2>[A-Z]{1,4}\d{2,5}):?\s)(?P<message>.*?)(?:\s+[\[(](?P<code3>[\w.,/=+-]+)[\])])?$`},
		{kind: Compiler, noun: "diagnostic", share: 0.2, least: 2, lead: "message",
			entry: `^(?P<path>[^\s:()]+\.\w+):\d+:\d+: (?P<message>.*?)(?: \((?P<code>\w+)\))?$`, more: `^# `},
		{kind: Compiler, noun: "diagnostic", share: 0.15, least: 2, brief: []string{"severity", "code", "message", "place"}, lead: "code",
			entry: `^(?P<severity>error|warning)(?:\[(?P<code>[\w:]+)\])?: (?P<message>.*)`, more: `^ +(?:--> (?P<place>[^:]+:\d+)|= note: .#\[\w+\((?P<code2>[\w:]+)\)\])`},
		{kind: Compiler, noun: "diagnostic", share: 0.5, least: 2, lead: "code",
			entry: `^ +\d+:\d+ +(?P<severity>error|warning) +(?P<message>.*?)(?:  +(?P<code>\S+))?$`, more: `^(?P<in_path>[/.]?\S+\.\w+)$`},
		{kind: Tests, noun: "benchmark", share: 0.4, least: 3,
			entry: `^(?P<benchmark>Benchmark\S+)\s+(?P<runs>\d+)\s+(?P<ns_op>[\d.]+) ns/op(?:\s+(?P<B_op>\d+) B/op)?(?:\s+(?P<allocs_op>\d+) allocs/op)?`},
		{kind: Diff, noun: "changed file", share: 0.9, least: 4, entry: `^ (?P<path>\S.*?) +\| +(?:(?P<changes>\d+)|Bin)`, more: `^ \d+ files? changed`},
		{kind: Diff, noun: "changed file", share: 0.95, least: 4, entry: `^(?P<added>\d+|-)\t(?P<removed>\d+|-)\t(?P<path>\S*[^\s\d.,:-].*)$`},
		{kind: Diff, noun: "changed file", share: 0.9, least: 4,
			entry: `^(?:(?P<result>Files|Binary files) (?P<path>\S+) and \S+ (?:differ|are identical)|(?P<result2>Only in) (?P<directory>[^:]+): .*)$`},
		{kind: Code, noun: "label", share: 0.85, least: 3,
			entry: `^(?:TEXT (?P<function>\S+)\(SB\)|[0-9a-f]{8,16} <(?P<function2>[^>]+)>:|(?P<function3>[\w.]+):(?:\s+[#;/].*|\s*)$)`, more: `^\s+(?:[0-9a-f]+:\t|\S+:\d+\t0x)|^ *\t[.a-zA-Z][\w.]*(?:[\s(]|$)|^\s*[#;/]`},
		{kind: Code, noun: "instruction", share: 0.25, least: 4,
			entry: `^(?P<instruction>FROM|RUN|COPY|ADD|ENV|ARG|WORKDIR|ENTRYPOINT|CMD|LABEL|USER|EXPOSE|VOLUME|SHELL|STOPSIGNAL|HEALTHCHECK|ONBUILD)\s+(?:--\S+ )*(?:\S.*)`, more: `^#|^\s|^\S.*\\$|^EOF`, lead: "instruction"},
		{kind: Records, noun: "message", share: 0.5, least: 3, entry: `^msgid "(?P<text>.*)"$`, more: `^(?:msgstr|(?P<plural>msgid_plural)|msgctxt|"|#)`},
		{kind: Table, noun: "function", share: 0.9, least: 3, entry: `^(?P<path>\S+):\d+:\s+(?P<function>\S+)\s+(?P<coverage>[\d.]+%)$`, more: `^total:`},
		{kind: Matches, noun: "match", share: 0.8, least: 3, lead: "path",
			entry: `^(?P<path>[^\s:"'{}()]*[./\\][^\s:"'{}()]*)[:-]\d+[:-](?:[^ ]|  |\t| \S+[^:]*$|$)`, more: `^--$`},
		{kind: Matches, noun: "match", share: 0.9, least: 3, lead: "path", order: "path",
			entry: `^(?P<path>[^\s:"'{}()]*[./\\][^\s:"'{}()]*)[:-](?:[^ \d]|  |$)`, more: `^--$`},
		{kind: Matches, noun: "match", share: 0.95, least: 3, order: "line", entry: `^(?P<line>\d+)[:-](?:[^\d ]|$)`, more: `^--$`},
		{kind: Matches, noun: "match", share: 0.95, least: 3, lead: "path", entry: `^\d+[:-](?:\D|$)`, more: `^(?:\w+:)?(?P<in_path>[^\s:][^:]*[./\\][^\s:]*)$`},
		{kind: Lock, noun: "checksum", share: 0.9, least: 4, entry: `^(?P<module>[\w.~/-]+) (?P<version>v\S+?)(?:/go.mod)? h1:\S+=$`},
		{kind: Lock, noun: "package", share: 0.5, least: 3, brief: []string{"package", "version"},
			entry: `^\[\[packages?\]\]$`, more: `^(?:name = "(?P<package>[^"]+)"|version = "(?P<version>[^"]+)"|source = "(?P<source>[^"#?]+)|[\w.-]+ = |\s|\])`},
		{kind: Lock, noun: "package", share: 0.7, least: 3, brief: []string{"package", "version"},
			entry: `^"?(?P<package>@?[^@\s"]+)@.*:$`, more: `^  +(?:version:? "?(?P<version>[^"]+)|\S)`},
		{kind: Lock, noun: "package", share: 0.7, least: 4, entry: `^    (?P<package>[\w.-]+) \((?P<version>[^)]+)\)$`, more: `^(?:[A-Z ]+$|      \S|  [\w-]+)`},
		{kind: Lock, noun: "package", share: 0.8, least: 4, entry: `^(?P<package>[\w.-]+)(?:\[.*\])?==(?P<version>[^\s;\\]+)`, more: `^ +(?:--hash|#)|^#`},
		{kind: Binary, noun: "row", share: 0.9, least: 4, entry: `^(?:[0-9a-f]{6,16}:? +[0-9a-f]{2}[0-9a-f ]|[A-Za-z0-9+/]{60,80}={0,2}$)`},
		{kind: Table, noun: "symbol", share: 0.8, least: 4, entry: `^ *(?:[0-9a-f]{4,16})? +(?:(?P<size>\d+) +)?(?P<type>[A-Za-z?]) (?P<symbol>\S.*)$`},
		{kind: Listing, noun: "row", share: 0.95, least: 4, entry: `^ *(?P<size>\d[\d.,]*[KMGT]?)[ \t]+(?P<path>(?:\.\.?|\S*[^\s\d.,-]\S*)(?: \S+){0,3})$`},
		{kind: Records, noun: "mapping", share: 0.9, least: 2, brief: []string{"range", "mapping", "Size"},
			entry: `^(?P<range>[0-9a-f]+-[0-9a-f]+) (?P<mode>\S+) \S+ \S+ \d+ *(?P<mapping>.*)`, more: `^(?:Size: +(?P<Size>.*)|Rss: +(?P<Rss>.*)|Pss: +(?P<Pss>.*)|Private_Dirty: +(?P<Private_Dirty>.*)|Swap: +(?P<Swap>.*)|\w+: )`},
		{kind: Listing, noun: "file", share: 0.95, least: 4, entry: `^(?P<path>[^\s:]*/[^\s:]*): +(?P<type>[^,]+?)(?:,.*| for .*)?$`},
		{kind: Listing, noun: "path", share: 0.9, least: 4, // of git status
			entry: `^\t(?:(?P<state>[a-z][a-z ]+): +(?P<path>\S.*)|(?P<path2>\S+))$`, more: `^(?P<in_section>(?:Changes|Untracked|Unmerged) [^:]+):$|^  \(use |^(?:On|Your) branch |^and have `},
	}
	for _, f := range all {
		f.entryRE = regexp.MustCompile(f.entry)
		if f.more != "" {
			f.moreRE = regexp.MustCompile(f.more)
		}
	}
	return all
})

// fits reports whether the sampled lines have the form.
func (c *form) fits(sample []string) bool {
	if len(sample) == 0 || c.first && !c.entryRE.MatchString(sample[0]) {
		return false
	}
	entries, more := 0, 0
	var values []string // of order
	for i, l := range sample {
		if i == 60 && c.share >= 0.5 && float64(entries+more) < 40*c.share { // far from it
			return false
		}
		if len(l) > maxForm {
			continue
		}
		if c.entryRE.MatchString(l) {
			if entries++; c.order != "" {
				values = append(values, c.entryRE.FindStringSubmatch(l)[c.entryRE.SubexpIndex(c.order)])
			}
		} else if c.moreRE != nil && c.moreRE.MatchString(l) {
			more++
		}
	}
	return entries >= c.least && inOrder(values) && (more > 0 || !strings.Contains(c.more, "<in_path>")) && float64(entries+more) >= c.share*float64(len(sample))
}

// inOrder reports whether equal values follow each other, as the names of files that grep prints, or are numbers
// that rise.
func inOrder(values []string) bool {
	var all tally
	runs, rises := 0, 0
	for i, v := range values {
		all.add(v, i)
		if i == 0 || v != values[i-1] {
			runs++
		}
		if i > 0 && isDigit(v[0]) && (len(v) > len(values[i-1]) || len(v) == len(values[i-1]) && v > values[i-1]) {
			rises++
		}
	}
	return rises*20 >= (len(values)-1)*19 || runs <= len(all.n)*11/10 && len(all.n)*2 <= len(values)
}

const maxForm = 4 << 10 // bytes of a line that can have a form

// read adds the entries of the text.
func (c *form) read(f *findings) {
	e := &entries{noun: c.noun, shown: c.brief, many: c.many, lead: c.lead}
	for i, l := range f.lines {
		if len(l) > maxForm || i == len(f.lines)-1 && isTotal(strings.Fields(l)) {
			continue
		}
		if m := c.entryRE.FindStringSubmatchIndex(l); m != nil {
			e.begin(i)
			e.groups(c.entryRE, l, m)
		} else if c.moreRE != nil {
			if m := c.moreRE.FindStringSubmatchIndex(l); m != nil {
				e.groups(c.moreRE, l, m)
			}
		}
	}
	e.tell(f)
}

// isTotal reports whether the last row has the sums of the others, as of wc and du.
func isTotal(row []string) bool { return len(row) > 1 && row[len(row)-1] == "total" }

func (e *entries) groups(re *regexp.Regexp, l string, m []int) {
	for g, name := range re.SubexpNames() {
		if name == "" || m[2*g] < 0 {
			continue
		}
		value := l[m[2*g]:m[2*g+1]]
		name = strings.TrimRight(name, "0123456789")
		if of, ok := strings.CutPrefix(name, "in_"); ok {
			e.around, e.value = of, value
			continue
		}
		e.set(name, value)
	}
}
