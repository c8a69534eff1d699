package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NameOf returns the name of the namespace that belongs to this process: the prefix and
// the process' number. RemoveAbandoned finds it when the process was killed.
func NameOf(prefix string) string { return prefix + strconv.Itoa(os.Getpid()) }

// RemoveAbandoned removes the namespaces with names by NameOf(prefix) whose processes have
// ended: what a killed run left would take processors and memory from the next.
func RemoveAbandoned(ctx context.Context, prefix string) error {
	paths, err := filepath.Glob(filepath.Join(folder, prefix+"*"))
	if err != nil {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		pid, err := strconv.Atoi(strings.TrimPrefix(name, prefix))
		if err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue
		}
		if err := Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
