// Package pagetest keeps the generated pages of docs/reference current. A test makes a page
// of the code and calls Current, which compares it with the file, or writes the file with
// the flag -update (make generate does). Tests make the pages because what the pages
// describe, such as a command line, can be reached only from its own package.
package pagetest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the generated pages instead of comparing them")

// notice begins every generated page.
const notice = "<!-- Generated from the code by `make generate`. Do not edit. -->\n\n"

// Current fails the test unless the file at path has this content, after the notice that
// it is generated. With -update it writes the file.
func Current(t *testing.T, path, content string) {
	t.Helper()
	content = notice + strings.TrimSpace(content) + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	present, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(present) != content {
		t.Errorf("%s is not current: run make generate", path)
	}
}

// Table writes a Markdown table.
func Table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(strings.ReplaceAll(cell, "|", `\|`), "\n", " ")
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	line(head)
	fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(head)))
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// Code writes a word as Markdown code, and nothing as nothing.
func Code(word string) string {
	if word == "" {
		return ""
	}
	return "`" + word + "`"
}

// Commands describes a program under the name that it is installed with: its flags, then
// each subcommand with its flags.
func Commands(name, about string, root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n%s", name, about, flagTable(root))
	if !root.HasSubCommands() {
		return b.String()
	}
	b.WriteString("\n## Commands\n")
	for _, c := range root.Commands() {
		_, arguments, _ := strings.Cut(c.Use, " ")
		fmt.Fprintf(&b, "\n### %s %s\n\n%s.\n", name, c.Name(), c.Short)
		if arguments != "" {
			fmt.Fprintf(&b, "\nArguments: `%s`\n", arguments)
		}
		if table := flagTable(c); table != "" {
			fmt.Fprintf(&b, "\n%s", table)
		}
	}
	return b.String()
}

func flagTable(c *cobra.Command) string {
	var rows [][]string
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value := f.DefValue
		if value == "[]" {
			value = ""
		}
		usage := strings.ToUpper(f.Usage[:1]) + f.Usage[1:]
		rows = append(rows, []string{Code("--" + f.Name), Code(value), usage + "."})
	})
	if len(rows) == 0 {
		return ""
	}
	return Table([]string{"flag", "default", "meaning"}, rows)
}
