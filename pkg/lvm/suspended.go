package lvm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Suspended implements Groups by asking the kernel's list of block devices.
func (h *Host) Suspended(group string) ([]string, error) { return listSuspended("/sys", group) }

func listSuspended(sys, group string) ([]string, error) {
	mappings, err := filepath.Glob(filepath.Join(sys, "block", "dm-*", "dm"))
	if err != nil {
		return nil, err
	}
	prefix := dmName(group, "")
	var names []string
	for _, dir := range mappings {
		name, err := os.ReadFile(filepath.Join(dir, "name"))
		if errors.Is(err, os.ErrNotExist) {
			continue // It is gone since.
		}
		if err != nil {
			return nil, err
		}
		volume, ours := strings.CutPrefix(strings.TrimSpace(string(name)), prefix)
		// Two hyphens are one within the name of another group.
		if !ours || strings.HasPrefix(volume, "-") {
			continue
		}
		suspended, err := os.ReadFile(filepath.Join(dir, "suspended"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if strings.TrimSpace(string(suspended)) == "1" {
			names = append(names, strings.ReplaceAll(volume, "--", "-"))
		}
	}
	return names, nil
}
