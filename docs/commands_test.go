package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carve-csi/carve/pkg/kubectl"
	"github.com/carve-csi/carve/pkg/must"
)

// flagsOf are the flags of each command of Carve's programs, as the generated pages list
// them: "carve-lvmd create" has those of the subcommand.
func flagsOf(t *testing.T, all map[string]*page) map[string][]string {
	t.Helper()
	flags := map[string][]string{}
	heading, flag := regexp.MustCompile(`^#+ (carve-\w+(?: [\w-]+)?)$`), regexp.MustCompile("^\\| `(--[\\w-]+)` \\|")
	for _, program := range []string{"carve-lvmd", "carve-node", "carve-controller"} {
		command := ""
		for line := range strings.Lines(string(all["docs/reference/"+program+".md"].source)) {
			line = strings.TrimSpace(line)
			if m := heading.FindStringSubmatch(line); m != nil {
				command = m[1]
				flags[command] = []string{"--help", "--version"}
			}
			if m := flag.FindStringSubmatch(line); m != nil {
				flags[command] = append(flags[command], m[1])
			}
		}
	}
	if len(flags) < 10 {
		t.Fatalf("only %d commands were found", len(flags))
	}
	return flags
}

// foreignFlags are flags that pages name of other programs.
var foreignFlags = []string{
	"--root-dir", "--register-with-taints", "--kube-api-qps", "--kube-api-burst", "--config", "--metadatasize", "--memory-file",
	"--pbkdf", "--feature-gates", "--enable-capacity", "--startup-taint", "--maxrecoveryrate", "--option", "--cascade",
	"--extra-disks", "--local-nvme-ssd-block", "--ephemeral-storage-local-ssd", "--nodes", "--set",
	"--balance-similar-node-groups", "--balancing-ignore-label", "--max-bulk-soft-taint-count", "--scale-down-unneeded-time",
}

func TestEveryFlagExists(t *testing.T) {
	all := pages(t)
	flags := flagsOf(t, all)
	var known []string
	for _, list := range flags {
		known = append(known, list...)
	}
	known = append(known, pluginFlags(kubectl.NewCommand("test"))...)
	found := 0
	for _, p := range all {
		if p.generated() {
			continue
		}
		for _, code := range p.code {
			name, _, _ := strings.Cut(code, "=")
			name, _, _ = strings.Cut(name, " ")
			if strings.HasPrefix(name, "--") {
				found++
				if !slices.Contains(known, name) && !slices.Contains(foreignFlags, name) {
					t.Errorf("%s names the flag %s, which no program has", p.path, name)
				}
			}
			checkProgram(t, p.path, flags, code)
			checkPlugin(t, p.path, code)
		}
	}
	if found < 15 {
		t.Errorf("only %d flags were found", found)
	}
}

// pluginFlags are those of a command and its subcommands.
func pluginFlags(command *cobra.Command) []string {
	var known []string
	add := func(f *pflag.Flag) { known = append(known, "--"+f.Name) }
	command.Flags().VisitAll(add)
	command.PersistentFlags().VisitAll(add)
	for _, sub := range command.Commands() {
		known = append(known, pluginFlags(sub)...)
	}
	return known
}

var programCall = regexp.MustCompile(`(?:^|\s|/)(carve-(?:lvmd|node|controller))((?: [^|;&]+)?)$`)

// checkProgram looks at a call of one of Carve's programs, if the command has one.
func checkProgram(t *testing.T, from string, flags map[string][]string, command string) {
	t.Helper()
	m := programCall.FindStringSubmatch(command)
	if m == nil {
		return
	}
	name, arguments := m[1], strings.Fields(m[2])
	if len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-") {
		name, arguments = name+" "+arguments[0], arguments[1:]
	}
	known, ok := flags[name]
	if !ok {
		t.Errorf("%s: %q: there is no command %q", from, command, name)
		return
	}
	for _, argument := range arguments {
		flag, _, _ := strings.Cut(argument, "=")
		if strings.HasPrefix(flag, "--") && !slices.Contains(known, flag) && !slices.Contains(flags[m[1]], flag) {
			t.Errorf("%s: %q: %s has no flag %s", from, command, name, flag)
		}
	}
}

var pluginCall = regexp.MustCompile(`(?:^|\s)kubectl[ -]carve((?: [^|;&<>]+)?)`)

// checkPlugin looks at a call of the plugin of kubectl, if the command has one: the subcommand
// exists, has the flags, and takes that many arguments, unless it is only named.
func checkPlugin(t *testing.T, from, command string) {
	t.Helper()
	m := pluginCall.FindStringSubmatch(command)
	if m == nil {
		return
	}
	plugin := kubectl.NewCommand("test")
	plugin.InitDefaultCompletionCmd()
	sub, arguments, err := plugin.Find(strings.Fields(strings.Replace(m[1], "completion SHELL", "completion bash", 1)))
	if err == nil {
		err = sub.ParseFlags(arguments)
	}
	if err == nil && len(sub.Flags().Args()) > 0 {
		err = sub.ValidateArgs(sub.Flags().Args())
	}
	if err != nil {
		t.Errorf("%s: %q: %v", from, command, err)
	}
}

var (
	makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	comment    = regexp.MustCompile(`\s{2,}#.*$`)
	repository = regexp.MustCompile(`(?:^|\s)((?:\.\./|\./)?(?:deploy|cmd|pkg|api|e2e|docs)(?:/[\w.-]+)*)`)
)

// commands are what a console block has the reader type, each on one line.
func commands(b block) []string {
	var out []string
	for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
		line = strings.TrimRight(line, "\n")
		if rest, ok := strings.CutPrefix(line, "$ "); ok {
			out = append(out, comment.ReplaceAllString(rest, ""))
		} else if rest, ok := strings.CutPrefix(line, "# "); ok {
			out = append(out, comment.ReplaceAllString(rest, ""))
		}
	}
	return out
}

// folderAfter returns the folder that a reader is in after a command, and checks that the command can be
// given in the one before.
func folderAfter(t *testing.T, from, command, dir string) string {
	t.Helper()
	words := strings.Fields(command)
	switch words[0] {
	case "cd":
		dir = filepath.Join(dir, words[1])
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s: %q: there is no such folder in %s, where the reader is", from, command, filepath.Dir(dir))
		}
	case "make":
		makefile := filepath.Join(dir, "Makefile")
		if len(words) > 2 && words[1] == "-C" {
			makefile = filepath.Join(dir, words[2], "Makefile")
		}
		if _, err := os.Stat(makefile); err != nil {
			t.Errorf("%s: %q: there is no %s, and the reader is in %s", from, command, makefile, dir)
		}
	}
	return dir
}

func TestEveryCommandExists(t *testing.T) {
	all := pages(t)
	flags := flagsOf(t, all)
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(string(must.Get(os.ReadFile(filepath.Join(root, "Makefile")))(t)), -1) {
		targets[m[1]] = true
	}
	checked := 0
	for _, p := range all {
		// A reader stays in the folder that an earlier block went to.
		dir := root
		for _, b := range p.blocks {
			if b.language == "sh" || b.language == "bash" || b.language == "shell" {
				t.Errorf("%s: a block of commands is marked %s; console is looked at", p.path, b.language)
			}
			if b.language != "console" {
				continue
			}
			for _, command := range commands(b) {
				checked++
				words := strings.Fields(command)
				if words[0] == "make" {
					for _, word := range words[1:] {
						if !strings.ContainsAny(word, "=-./") || makeTarget.MatchString(word+":") {
							if !targets[word] {
								t.Errorf("%s: %q: the Makefile has no target %s", p.path, command, word)
							}
						}
					}
				}
				for _, m := range repository.FindAllStringSubmatch(command, -1) {
					if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
						t.Errorf("%s: %q: %s does not exist", p.path, command, m[1])
					}
				}
				dir = folderAfter(t, p.path, command, dir)
				if strings.Contains(command, "get secret") && strings.Contains(command, "{.data.") && !strings.Contains(command, "base64 -d") {
					t.Errorf("%s: %q: it prints the Secret in base64", p.path, command)
				}
				checkProgram(t, p.path, flags, command)
				checkPlugin(t, p.path, command)
			}
		}
		for _, code := range p.code {
			words := strings.Fields(code)
			if len(words) > 1 && words[0] == "make" && !strings.Contains(words[1], "/") && !targets[words[1]] && !strings.Contains(words[1], "=") {
				t.Errorf("%s: the Makefile has no target %s", p.path, words[1])
			}
			if m := repository.FindStringSubmatch(code); m != nil && m[1] == code && strings.Contains(code, "/") {
				checked++
				if _, err := os.Stat(filepath.Join(root, code)); err != nil {
					t.Errorf("%s names %s, which does not exist", p.path, code)
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d commands and paths were found", checked)
	}
}
