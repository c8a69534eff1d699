package cgroup

import (
	"fmt"
	"strconv"
	"strings"
)

// Max is one line of io.max: a cgroup's limits for one device. Zero means no
// limit. Max is comparable.
type Max struct {
	// BPS is in bytes per second, IOPS in requests per second, less than
	// 4294967295, which the kernel takes for no limit.
	ReadBPS, WriteBPS, ReadIOPS, WriteIOPS uint64
}

// keys are the kernel's names of the fields, in order.
var keys = []string{"rbps", "wbps", "riops", "wiops"}

func (m *Max) fields() []*uint64 {
	return []*uint64{&m.ReadBPS, &m.WriteBPS, &m.ReadIOPS, &m.WriteIOPS}
}

// line returns the line to write for a device. It has every limit, as the
// kernel keeps omitted ones.
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

// parse parses io.max, which has a line per limited device. It ignores unknown
// keys, as newer kernels may add some.
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
