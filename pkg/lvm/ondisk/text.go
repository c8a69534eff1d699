package ondisk

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// LVM's metadata text has sections of settings, each a number, a string or a list of those.
//
//	group {
//	seqno = 12
//	status = ["RESIZEABLE", "READ", "WRITE"]  # comment
//	physical_volumes { pv0 { … } }
//	}

// section is a section of the text, or all of it. Values are int64, string, []any of those, or
// section.
type section map[string]any

// maxTextDepth bounds the nesting of sections; LVM nests four.
const maxTextDepth = 16

// parseText rejects anything but the form above.
func parseText(text []byte) (section, error) {
	p := textParser{rest: bytes.TrimRight(text, "\x00")}
	s := p.settings(0)
	if p.err == nil && p.peek() != 0 {
		p.fail("'}' without '{'")
	}
	if p.err != nil {
		return nil, fmt.Errorf("metadata at byte %d: %w", len(text)-len(p.rest), p.err)
	}
	return s, nil
}

func parseGroup(text []byte) (section, error) {
	root, err := parseText(text)
	if err != nil {
		return nil, err
	}
	var vg section
	for _, v := range root {
		if s, ok := v.(section); ok {
			if vg != nil {
				return nil, fmt.Errorf("metadata: more than one group")
			}
			vg = s
		}
	}
	return vg, nil
}

type textParser struct {
	rest []byte
	err  error
}

func (p *textParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

// peek skips white space and comments. It returns the next byte, or 0 at the end and after an
// error.
func (p *textParser) peek() byte {
	for p.err == nil && len(p.rest) > 0 {
		switch c := p.rest[0]; c {
		case ' ', '\t', '\n', '\r':
			p.rest = p.rest[1:]
		case '#':
			if end := bytes.IndexByte(p.rest, '\n'); end >= 0 {
				p.rest = p.rest[end:]
			} else {
				p.rest = nil
			}
		default:
			return c
		}
	}
	return 0
}

func (p *textParser) take(want byte) {
	if p.peek() != want {
		p.fail("want %q", want)
		return
	}
	p.rest = p.rest[1:]
}

// settings reads `name = value` and `name { … }` up to a brace or the end.
func (p *textParser) settings(depth int) section {
	s := section{}
	if depth > maxTextDepth {
		p.fail("more than %d sections within another", maxTextDepth)
	}
	for c := p.peek(); c != 0 && c != '}'; c = p.peek() {
		name := p.word()
		if _, twice := s[name]; twice {
			p.fail("%q is there twice", name)
			return s
		}
		if p.peek() == '{' {
			p.take('{')
			s[name] = p.settings(depth + 1)
			p.take('}')
			continue
		}
		p.take('=')
		if p.peek() == '[' {
			s[name] = p.list()
		} else {
			s[name] = p.scalar()
		}
	}
	return s
}

func (p *textParser) list() []any {
	var values []any
	p.take('[')
	for c := p.peek(); c != 0 && c != ']'; c = p.peek() {
		values = append(values, p.scalar())
		if p.peek() != ',' {
			break
		}
		p.take(',')
	}
	p.take(']')
	return values
}

func (p *textParser) scalar() any {
	if p.peek() == '"' {
		return p.quoted()
	}
	word := p.word()
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		// Carve uses no setting that is a fraction.
		if _, err := strconv.ParseFloat(word, 64); err != nil {
			p.fail("%q is no value", word)
		}
		return word
	}
	return n
}

// quoted reads a string in which a backslash escapes the next byte.
func (p *textParser) quoted() string {
	p.take('"')
	if end := bytes.IndexByte(p.rest, '"'); end >= 0 && bytes.IndexByte(p.rest[:end], '\\') < 0 {
		text := string(p.rest[:end])
		p.rest = p.rest[end+1:]
		return text
	}
	var b []byte
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return string(b)
		case c == '\\' && i+1 < len(p.rest):
			i++
			b = append(b, p.rest[i])
		default:
			b = append(b, c)
		}
	}
	p.fail("a string does not end")
	return ""
}

func (p *textParser) word() string {
	p.peek()
	n := 0
	for n < len(p.rest) && (isAlnum(p.rest[n]) || strings.IndexByte("_+.-", p.rest[n]) >= 0) {
		n++
	}
	if n == 0 {
		p.fail("want a name or a value")
		return ""
	}
	word := string(p.rest[:n])
	p.rest = p.rest[n:]
	return word
}
