package cgroup

import (
	"fmt"
	"strconv"
	"strings"
)

// Max is one line of io.max: what a cgroup may do with one device. Zero means no limit. Max
// is comparable.
type Max struct {
	// ReadBPS and WriteBPS are in bytes per second, ReadIOPS and WriteIOPS in requests per
	// second, less than 4294967295, which the kernel takes for no limit.
	ReadBPS, WriteBPS, ReadIOPS, WriteIOPS uint64
}

// keys are the kernel's names of the fields, in its order.
var keys = []string{"rbps", "wbps", "riops", "wiops"}

func (m *Max) fields() []*uint64 {
	return []*uint64{&m.ReadBPS, &m.WriteBPS, &m.ReadIOPS, &m.WriteIOPS}
}

// line is what is written for a device. It names every limit: what is left out stays.
func (m Max) line(device string) string {
	words := []string{device}
	for i, value := range m.fields() {
		text := "max"
		if *value != 0 {
			text = strconv.FormatUint(*value, 10)
		}
		words = append(words, keys[i]+"="+text)
	}
	return strings.Join(words, " ")
}

// parse reads io.max, which has a line for each device that has a limit. Keys that are not
// known are left out: a later kernel may have some.
func parse(text string) (map[string]Max, error) {
	all := map[string]Max{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var m Max
		fields := m.fields()
		for _, word := range words[1:] {
			key, value, ok := strings.Cut(word, "=")
			if !ok {
				return nil, fmt.Errorf("%q has no value in %q", word, line)
			}
			for i, known := range keys {
				if key != known || value == "max" {
					continue
				}
				n, err := strconv.ParseUint(value, 10, 64)
				if err != nil {
					return nil, fmt.Errorf("%q: %w", line, err)
				}
				*fields[i] = n
			}
		}
		all[words[0]] = m
	}
	return all, nil
}
