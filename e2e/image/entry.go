package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// tree is a file system: its entries by path, without a slash at either end. The root
// itself is not in it.
type tree map[string]entry

// entry is a file, a folder, a link or a device. Only what matters in an image is kept.
type entry struct {
	kind    byte // One of archive/tar's type flags.
	mode    int64
	uid     int
	gid     int
	link    string // Of links: the target.
	content []byte // Of regular files.
}

// folder, file and link are the entries of that kind, owned by root.
func folder(mode int64) entry { return entry{kind: tar.TypeDir, mode: mode} }
func file(mode int64, content []byte) entry {
	return entry{kind: tar.TypeReg, mode: mode, content: content}
}
func link(target string) entry { return entry{kind: tar.TypeSymlink, mode: 0o777, link: target} }

// epoch is the time of everything in a layer.
var epoch = time.Unix(0, 0).UTC()

// readTree reads a tar. Devices are left out: a container gets its own.
func readTree(source io.Reader) (tree, error) {
	result := make(tree)
	reader := tar.NewReader(source)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return result, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a file system: %w", err)
		}
		name := clean(header.Name)
		one := entry{kind: header.Typeflag, mode: header.Mode, uid: header.Uid, gid: header.Gid, link: header.Linkname}
		switch header.Typeflag {
		case tar.TypeReg:
			if one.content, err = io.ReadAll(reader); err != nil {
				return nil, fmt.Errorf("read %s: %w", header.Name, err)
			}
		case tar.TypeLink:
			one.link = clean(one.link)
		case tar.TypeDir, tar.TypeSymlink:
		default:
			continue
		}
		if name != "" {
			result[name] = one
		}
	}
}

// clean returns a path as the keys of a tree are.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// writeTar writes the tree as a tar that depends on nothing but the tree. Parents come
// before what is in them, and the files of hard links before the links.
func (t tree) writeTar(output io.Writer) error {
	writer := tar.NewWriter(output)
	names := slices.Sorted(maps.Keys(t))
	for _, links := range []bool{false, true} {
		for _, name := range names {
			if (t[name].kind == tar.TypeLink) != links {
				continue
			}
			if err := writeEntry(writer, name, t[name]); err != nil {
				return fmt.Errorf("write %s into a layer: %w", name, err)
			}
		}
	}
	return writer.Close()
}

func writeEntry(writer *tar.Writer, name string, e entry) error {
	if e.kind == tar.TypeDir {
		name += "/"
	}
	header := &tar.Header{
		Typeflag: e.kind, Name: name, Linkname: e.link,
		Mode: e.mode, Uid: e.uid, Gid: e.gid,
		Size: int64(len(e.content)), ModTime: epoch, Format: tar.FormatPAX,
	}
	if err := writer.WriteHeader(header); err != nil {
		return err
	}
	_, err := writer.Write(e.content)
	return err
}

// tar returns the tree as a tar.
func (t tree) tar() ([]byte, error) {
	var buffer bytes.Buffer
	if err := t.writeTar(&buffer); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

// add puts the file at path on this machine into the tree as name, with its parents.
func (t tree) add(name, path string, mode int64) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("put %s into an image: %w", name, err)
	}
	t[name] = file(mode, content)
	t.addParents(name)
	return nil
}

// has reports whether there is anything called name.
func (t tree) has(name string) bool {
	_, ok := t[name]
	return ok
}

// addParents makes the folders above name that are not there.
func (t tree) addParents(name string) {
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if !t.has(parent) {
			t[parent] = folder(0o755)
		}
	}
}
