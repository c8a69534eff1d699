// Command shape fails where a type is too large to be understood as a whole:
//
//	go run ./shape FOLDER...
//
// It counts the methods of each type and the fields of each struct in the Go packages below the
// folders. Tests, generated code, and packages that only tests import (named fake or test)
// are left out, as are the fields of types named Options or options: those are lists of settings.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The limits only go down.
const (
	mostMethods = 40
	mostFields  = 15
)

func main() {
	var large []string
	for _, folder := range os.Args[1:] {
		found, err := check(folder)
		if err != nil {
			fmt.Fprintln(os.Stderr, "shape:", err)
			os.Exit(2)
		}
		large = append(large, found...)
	}
	for _, line := range large {
		fmt.Fprintln(os.Stderr, line)
	}
	if len(large) > 0 {
		os.Exit(1)
	}
}

// check returns a line for each limit that a type below the root exceeds.
func check(root string) (large []string, err error) {
	types := map[string]*shape{}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir():
			if strings.HasSuffix(name, "fake") || strings.HasSuffix(name, "test") || name == "testdata" {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil && !ast.IsGenerated(file) {
			count(file, filepath.Dir(path), types)
		}
		return err
	})
	for name, s := range types {
		if s.methods > mostMethods {
			large = append(large, fmt.Sprintf("%s has %d methods, at most %d are allowed: give some of them, with their fields, to a type of their own", name, s.methods, mostMethods))
		}
		if s.fields > mostFields && !strings.EqualFold(filepath.Ext(name), ".options") {
			large = append(large, fmt.Sprintf("%s has %d fields, at most %d are allowed: give those that change together to a type of their own", name, s.fields, mostFields))
		}
	}
	slices.Sort(large)
	return large, err
}

// shape is what a type has.
type shape struct{ methods, fields int }

// count adds what a file declares to the types, which are named FOLDER.TYPE.
func count(file *ast.File, folder string, types map[string]*shape) {
	of := func(name string) *shape {
		key := folder + "." + name
		if types[key] == nil {
			types[key] = &shape{}
		}
		return types[key]
	}
	for _, declared := range file.Decls {
		switch d := declared.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				of(receiver(d.Recv.List[0].Type)).methods++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok {
					if s, ok := t.Type.(*ast.StructType); ok {
						of(t.Name.Name).fields = s.Fields.NumFields()
					}
				}
			}
		}
	}
}

// receiver is the name of a method's type, which may be a pointer and have parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}
