package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
)

// packageName is the rule for names of Debian packages.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// readPackages reads a list of packages: one a line, with comments that begin with #.
func readPackages(path string) ([]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the list of packages: %w", err)
	}
	var packages []string
	for number, line := range strings.Split(string(content), "\n") {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if !packageName.MatchString(line) {
			return nil, fmt.Errorf("%s:%d: got %q, want the name of one Debian package", path, number+1, line)
		}
		packages = append(packages, line)
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("%s: it lists no packages", path)
	}
	return packages, nil
}

// systemFiles are what the packages' scripts, which are not run, would have made, as far
// as programs in a container ask for it: names of users, and how to look up hosts.
func systemFiles() tree {
	return tree{
		"etc":               folder(0o755),
		"etc/passwd":        file(0o644, []byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")),
		"etc/group":         file(0o644, []byte("root:x:0:\ndisk:x:6:\nnogroup:x:65534:\n")),
		"etc/nsswitch.conf": file(0o644, []byte("passwd: files\ngroup: files\nhosts: files dns\n")),
		"tmp":               folder(0o1777),
	}
}

// downloads is where apt puts the packages that it downloads, and statusFolder where an image
// says what it was made of, as images without dpkg do: a file for each package, which scanners
// for known vulnerabilities read.
const (
	downloads    = "var/cache/apt/archives/"
	statusFolder = "var/lib/dpkg/status.d/"
)

// unpackedPackages returns the files of statusFolder for the packages that were downloaded:
// NAME_VERSION_ARCHITECTURE.deb, with what a file name cannot have escaped as in a URL.
func (t tree) unpackedPackages() (tree, error) {
	status := make(tree)
	for name := range t {
		file, ok := strings.CutPrefix(name, downloads)
		if !ok || !strings.HasSuffix(file, ".deb") {
			continue
		}
		unescaped, err := url.PathUnescape(strings.TrimSuffix(file, ".deb"))
		if err != nil {
			return nil, fmt.Errorf("read the name of %s: %w", file, err)
		}
		parts := strings.Split(unescaped, "_")
		if len(parts) != 3 {
			return nil, fmt.Errorf("got %q, want NAME_VERSION_ARCHITECTURE.deb", file)
		}
		status[statusFolder+parts[0]] = entry{kind: tar.TypeReg, mode: 0o644, content: fmt.Appendf(nil,
			"Package: %s\nStatus: install ok installed\nVersion: %s\nArchitecture: %s\n", parts[0], parts[1], parts[2])}
		status.addParents(statusFolder + parts[0])
	}
	if len(status) == 0 {
		return nil, errors.New("no package was downloaded")
	}
	return status, nil
}
