package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// loadOrder returns the paths, relative to the modules' directory, of the named
// modules and of all they need, in an order in which they can be loaded.
func loadOrder(dir string, names []string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("read the modules' dependencies: %w", err)
	}
	needs, err := parseDependencies(string(content))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("read the built-in modules: %w", err)
	}
	isBuiltin := make(map[string]bool)
	for path := range strings.FieldsSeq(string(builtin)) {
		isBuiltin[moduleName(path)] = true
	}
	byName := make(map[string]string, len(needs))
	for path := range needs {
		byName[moduleName(path)] = path
	}
	var order []string
	seen := make(map[string]bool)
	add := func(path string) {
		if !seen[path] {
			seen[path] = true
			order = append(order, path)
		}
	}
	for _, name := range names {
		path, ok := byName[name]
		if !ok {
			if isBuiltin[name] {
				continue
			}
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		// modules.dep lists all that is needed, directly or not, the deepest last.
		dependencies := needs[path]
		for i := len(dependencies) - 1; i >= 0; i-- {
			add(dependencies[i])
		}
		add(path)
	}
	return order, nil
}

// parseDependencies reads modules.dep: a line per module, "path: path path …".
func parseDependencies(content string) (map[string][]string, error) {
	needs := make(map[string][]string)
	for line := range strings.Lines(content) {
		path, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			return nil, fmt.Errorf("modules.dep: a line without a colon: %q", line)
		}
		needs[path] = strings.Fields(rest)
	}
	return needs, nil
}

// moduleName is the name under which the kernel knows the module in a file.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
