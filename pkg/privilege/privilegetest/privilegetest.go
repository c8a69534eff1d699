// Package privilegetest reports whether a process has the rights that package
// privilege leaves it, for the tests of the programs that give up theirs.
package privilegetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Reduced looks at every thread of a process: each has to have these capabilities
// and cannot have others.
func Reduced(pid int, keep []int) error {
	var want uint64
	for _, c := range keep {
		want |= 1 << c
	}
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/status"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("threads of process %d: %q, %w", pid, files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, line := range []string{
			fmt.Sprintf("CapEff:\t%016x", want), fmt.Sprintf("CapPrm:\t%016x", want), fmt.Sprintf("CapBnd:\t%016x", want), "NoNewPrivs:\t1",
		} {
			if !strings.Contains(string(content), line+"\n") {
				return fmt.Errorf("%s has no %q:\n%s", file, line, content)
			}
		}
	}
	return nil
}
