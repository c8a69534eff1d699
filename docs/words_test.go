package docs

import (
	"regexp"
	"strings"
	"testing"
)

// avoided are words that Carve once used and readers did not know, with what to write
// instead.
var avoided = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{word(`told|tells?|telling`), "report, show, say, notify"},
	{word(`room(?:s|ier|iest)?`), "free space, free capacity"},
	{word(`mortal|deadly|slay|slain|deaths?`), "process run, crash, crash point"},
	{word(`doubts?|doubtful|inherited`), "in flight, outcome unknown, adopted"},
	{word(`mend(?:s|ed|ing)?|torn|disarm`), "repair, inconsistent, clear the inactive table"},
	{word(`turn(?:s|ed)? away|hand(?:s|ed)? (?:it |a claim )?back|give up the claim`), "reject, reschedule, abandon"},
	{word(`redeem(?:s|ed)?|entomb(?:s|ed)?|bur(?:y|ied)`), "release, mark deleted"},
	{word(`settl(?:e[sd]?|ing)|promise[sd]?`), "persist, reconcile, finish; reserve"},
	{word(`ailing|ailments?|sick|wedged|deaf`), "unhealthy, condition, unresponsive"},
	{word(`patien(?:ce|tly)`), "timeout"},
	{word(`soiled|unclean`), "not zeroed; after a crash"},
	{word(`whereabouts|verbatim`), "segments of, exact"},
	{word(`strangers?`), "unknown, foreign"},
	{word(`hopeless|misfit`), "unsatisfiable, does not fit"},
	{word(`made anew|makes? anew|emptied`), "reformatted, data lost"},
	{word(`drills?|sagas?|decks?|residues?|frail`), "crash case, scenario, schedule, leftovers, volatile"},
	{word(`nobody|somebody|whoever`), "the name of the component, or the passive"},
	{word(`stor(?:y|ies)|life of|(?:earlier|another|one) life`), "scenario; process run"},
	{word(`forgiv(?:e|es|en)|behind (?:our|your|lvmd's) back|unjudged|risen`), "expire; by another program; unseen; increased"},
	{word(`complain(?:s|ed|ts?|ing)?`), "report, problem, warning"},
}

func word(alternatives string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + alternatives + `)\b`)
}

// separated is a line in which the words of names have spaces between them: TheFirst, the_first.
func separated(line string) string {
	line = lowerUpper.ReplaceAllString(line, "$1 $2")
	return strings.ReplaceAll(upperWord.ReplaceAllString(line, "$1 $2"), "_", " ")
}

var lowerUpper, upperWord = regexp.MustCompile(`([a-z0-9])([A-Z])`), regexp.MustCompile(`([A-Z])([A-Z][a-z])`)

func TestWordsThatReadersKnow(t *testing.T) {
	check := func(path, content string) {
		for number, line := range strings.Split(content, "\n") {
			// Names of metrics, files and annotations that are out stay.
			line = separated(unread.ReplaceAllString(line, ""))
			for _, a := range avoided {
				if found := a.pattern.FindString(line); found != "" {
					t.Errorf("%s:%d: %q; write: %s", path, number+1, found, a.instead)
				}
			}
		}
	}
	for _, p := range pages(t) {
		check(p.path, string(p.source))
	}
	walkSources(t, func(path string, content []byte) {
		if path != "docs/words_test.go" {
			check("the name of "+path, path)
			check(path, string(content))
		}
	})
}

// unread is what words are not looked for in: code, links, quoted words, what the API, metrics
// and the journal call a volume that lost its data, and words of other programs.
var unread = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)|https?://\\S+|(?i:\"emptied\"|emptied[-_]?at|annotationEmptied|volume(?:s_)?emptied)" +
	"|\"settle\"|nobody:x:65534:65534:nobody")
