package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// merged are the folders that are links into usr on a Debian system.
var merged = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// mergeUsr moves what packages hold in /bin, /sbin and the like under /usr and makes
// those folders links, as they are on every installed Debian.
func (t tree) mergeUsr() {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		e, moved := t[name], mergedPath(name)
		if e.kind == tar.TypeLink {
			e.link = mergedPath(e.link)
			t[name] = e
		}
		if moved == name {
			continue
		}
		delete(t, name)
		// A link from /usr/bin to the same name in /bin would be one to itself.
		if other, ok := t[moved]; !ok || other.kind == tar.TypeSymlink {
			t[moved] = e
			t.addParents(moved)
		}
	}
	for _, name := range merged {
		if t.has("usr/" + name) {
			t[name] = link("usr/" + name)
		} else {
			delete(t, name)
		}
	}
}

func mergedPath(name string) string {
	first, rest, _ := strings.Cut(name, "/")
	if rest == "" {
		return name
	}
	for _, folder := range merged {
		if first == folder {
			return "usr/" + name
		}
	}
	return name
}

// dropped are folders of which an image keeps nothing: what is never read there, and the
// languages of packages' maintenance scripts, which are not run.
var dropped = []string{
	"dev", "proc", "sys",
	"boot", "home", "media", "mnt", "opt", "srv",
	"etc/apt", "etc/cron.d", "etc/cron.daily", "etc/init.d", "etc/logrotate.d", "etc/dpkg", "etc/python3.11",
	"usr/games", "usr/include", "usr/src", "usr/share",
	"usr/lib/python3", "usr/lib/python3.11", "usr/lib/systemd", "usr/lib/udev",
	"usr/lib/x86_64-linux-gnu/gconv", "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl5", "usr/lib/x86_64-linux-gnu/perl-base",
	"usr/lib/aarch64-linux-gnu/gconv", "usr/lib/aarch64-linux-gnu/perl", "usr/lib/aarch64-linux-gnu/perl5", "usr/lib/aarch64-linux-gnu/perl-base",
	"var/cache", "var/lib/apt", "var/log",
}

// droppedFiles are patterns of single files dropped for the same reason. The scrubber of
// xfs is there because it alone needs the tables of Unicode, which are larger than all
// the rest.
var droppedFiles = []string{
	"etc/hostname", "etc/resolv.conf", "etc/fstab",
	"usr/bin/perl*", "usr/bin/cpan*", "usr/bin/python3*", "usr/bin/py3*", "usr/bin/pdb3*", "usr/bin/pydoc3*",
	"usr/bin/deb*", "usr/bin/dpkg*", "usr/sbin/dpkg*", "usr/sbin/deb*",
	"usr/sbin/xfs_scrub*",
}

// kept are exceptions from dropped: licences go wherever the programs go. Packages' files refer to
// texts that many have in common, and a package whose folder is a link has that of another.
func (t tree) kept(name string) bool {
	if strings.HasPrefix(name, "usr/share/common-licenses/") {
		return true
	}
	return path.Dir(name) == "usr/share/doc" && t[name].kind == tar.TypeSymlink ||
		strings.HasPrefix(name, "usr/share/doc/") && path.Base(name) == "copyright"
}

// drop removes what is not needed at run time.
func (t tree) drop() {
	for name := range t {
		if isDropped(name) && !t.kept(name) {
			delete(t, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if e := t[name]; e.kind == tar.TypeLink && !t.has(e.link) {
			delete(t, name)
			continue
		}
		t.addParents(name)
	}
}

func isDropped(name string) bool {
	for _, folder := range dropped {
		if name == folder || strings.HasPrefix(name, folder+"/") {
			return true
		}
	}
	for _, pattern := range droppedFiles {
		if match, err := path.Match(pattern, name); err == nil && match {
			return true
		}
	}
	return false
}

// libraryFolders is where the loader finds libraries by itself.
var libraryFolders = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"}

// loadedByName are libraries that no program says it needs: the C library loads the
// first for threads that end, and the others to look up names.
var loadedByName = []string{"libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2"}

// pruneLibraries removes the shared libraries that nothing needs any more: packages
// depend on other packages for the sake of one program of many. Links to what is needed
// stay: plug-ins are asked for by them. A program that needs a
// library which is not there is an error.
func (t tree) pruneLibraries() error {
	needed := make(map[string]bool)
	var queue []string
	need := func(name string) {
		if !needed[name] {
			needed[name] = true
			queue = append(queue, name)
		}
	}
	for name := range t {
		if !isLibrary(name) {
			need(name)
		}
	}
	for _, library := range loadedByName {
		if name, ok := t.findLibrary(library); ok {
			need(name)
		}
	}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		next, err := t.requirements(name)
		if err != nil {
			return err
		}
		for _, one := range next {
			need(one)
		}
	}
	for name, e := range t {
		leadsToNeeded := e.kind == tar.TypeSymlink && needed[t.target(name)]
		if isLibrary(name) && !needed[name] && !leadsToNeeded {
			delete(t, name)
		}
	}
	return nil
}

// target returns the path that the symbolic link called name leads to.
func (t tree) target(name string) string {
	target := t[name].link
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	return mergedPath(clean(target))
}

// isLibrary reports whether a path is one where only the loader looks. Libraries in
// folders below are plug-ins, which programs load by their path.
func isLibrary(name string) bool {
	if !strings.Contains(path.Base(name), ".so") {
		return false
	}
	for _, folder := range libraryFolders {
		if path.Dir(name) == folder {
			return true
		}
	}
	return false
}

// requirements returns the paths that the file called name needs: of a link its target,
// of a program its loader and its libraries.
func (t tree) requirements(name string) ([]string, error) {
	e := t[name]
	switch e.kind {
	case tar.TypeLink:
		return []string{e.link}, nil
	case tar.TypeSymlink:
		if target := t.target(name); t.has(target) {
			return []string{target}, nil
		}
		return nil, nil
	case tar.TypeReg:
		return t.dynamicRequirements(name, e.content)
	}
	return nil, nil
}

func (t tree) dynamicRequirements(name string, content []byte) ([]string, error) {
	if !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	program, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("read the program %s: %w", name, err)
	}
	libraries, err := program.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, fmt.Errorf("read what %s needs: %w", name, err)
	}
	folders, err := searchFolders(program, name)
	if err != nil {
		return nil, fmt.Errorf("read where %s looks for libraries: %w", name, err)
	}
	var paths []string
	for _, library := range libraries {
		found, ok := t.findLibrary(library, folders...)
		if !ok {
			return nil, fmt.Errorf("%s needs %s, which is not in the image", name, library)
		}
		paths = append(paths, found)
	}
	for _, segment := range program.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		loader, err := io.ReadAll(segment.Open())
		if err != nil {
			return nil, fmt.Errorf("read the loader of %s: %w", name, err)
		}
		found := mergedPath(clean(strings.TrimRight(string(loader), "\x00")))
		if !t.has(found) {
			return nil, fmt.Errorf("%s needs %s, which is not in the image", name, found)
		}
		paths = append(paths, found)
	}
	return paths, nil
}

// searchFolders returns the folders in which the program called name, and no other,
// looks for its libraries.
func searchFolders(program *elf.File, name string) ([]string, error) {
	var folders []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		lists, err := program.DynString(tag)
		if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
			return nil, err
		}
		for _, list := range lists {
			for folder := range strings.SplitSeq(list, ":") {
				folder = strings.ReplaceAll(folder, "${ORIGIN}", "$ORIGIN")
				folder = strings.ReplaceAll(folder, "$ORIGIN", "/"+path.Dir(name))
				folders = append(folders, mergedPath(clean(folder)))
			}
		}
	}
	return folders, nil
}

// findLibrary returns the path of a library in one of the folders, or else in those in
// which every program looks.
func (t tree) findLibrary(library string, folders ...string) (string, bool) {
	for _, folder := range append(folders, libraryFolders...) {
		name := path.Join(folder, library)
		if t.has(name) {
			return name, true
		}
	}
	return "", false
}
