package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/ratelimitd/ratelimitd/"

// packageLines returns the lines of the repository's packages, except for test, internal, and experimental ones, which have no
// guarantees.
func packageLines(repository string) ([]string, error) {
	lines, err := exported(repository, "./pkg/...")
	return slices.DeleteFunc(lines, func(line string) bool {
		path, _, _ := strings.Cut(line, ":")
		return strings.HasSuffix(path, "test") || strings.Contains(path, "/internal/")
	}), err
}

// exported returns a line for each exported constant, variable, function, type, field, and method of packages that are not
// experimental, with its type. The methods of an interface are on one line, because a new method breaks implementations.
func exported(dir, pattern string) ([]string, error) {
	loaded, err := packages.Load(&packages.Config{Dir: dir, Mode: packages.NeedName | packages.LoadTypes}, pattern)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if may, err := experimental(p.GoFiles); err != nil {
			return nil, err
		} else if may {
			continue
		}
		e := exporter{p.Types}
		for _, name := range p.Types.Scope().Names() {
			if token.IsExported(name) {
				lines = append(lines, e.object(p.Types.Scope().Lookup(name))...)
			}
		}
	}
	return lines, nil
}

// experimental reports whether the comment of a package with these files has a paragraph that begins with "Experimental:".
func experimental(files []string) (bool, error) {
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return false, err
		}
		if strings.Contains("\n\n"+f.Doc.Text(), "\n\nExperimental: ") {
			return true, nil
		}
	}
	return false, nil
}

// exporter formats the lines of one package.
type exporter struct{ pkg *types.Package }

// line formats a line. It begins with the package, which the types then omit.
func (e exporter) line(format string, args ...any) string {
	return strings.TrimPrefix(e.pkg.Path(), module) + ": " + fmt.Sprintf(format, args...)
}

func (e exporter) text(t types.Type) string {
	return types.TypeString(unnamed(t), func(p *types.Package) string {
		if p == e.pkg {
			return ""
		}
		return strings.TrimPrefix(p.Path(), module)
	})
}

func (e exporter) object(o types.Object) []string {
	switch o := o.(type) {
	case *types.Const:
		return []string{e.line("const %s %s = %s", o.Name(), e.text(o.Type()), o.Val().ExactString())}
	case *types.Var:
		return []string{e.line("var %s %s", o.Name(), e.text(o.Type()))}
	case *types.Func:
		return []string{e.line("func %s%s", o.Name(), e.signature(o))}
	case *types.TypeName:
		return e.typeName(o)
	}
	return nil
}

func (e exporter) typeName(o *types.TypeName) []string {
	if o.IsAlias() {
		return []string{e.line("type %s = %s", o.Name(), e.text(types.Unalias(o.Type())))}
	}
	named := o.Type().(*types.Named)
	name := e.text(named)
	lines := e.methods(named, name)
	switch under := named.Underlying().(type) {
	case *types.Struct:
		lines = append(lines, e.line("type %s struct", name))
		if types.Comparable(named) {
			lines = append(lines, e.line("type %s struct is comparable", name))
		}
		for f := range under.Fields() {
			if f.Exported() {
				lines = append(lines, e.line("type %s struct { %s %s }", name, f.Name(), e.text(f.Type())))
			}
		}
	case *types.Interface:
		return []string{e.line("type %s interface { %s }", name, e.required(under))}
	default:
		lines = append(lines, e.line("type %s %s", name, e.text(under)))
	}
	return lines
}

// required returns the methods of an interface.
func (e exporter) required(i *types.Interface) string {
	if !i.IsMethodSet() {
		return e.text(i)
	}
	var all []string
	for m := range i.Methods() {
		switch {
		case m.Exported():
			all = append(all, m.Name()+e.signature(m))
		case !slices.Contains(all, "unexported methods"):
			all = append(all, "unexported methods")
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// methods returns the methods of a type, including those of embedded fields.
func (e exporter) methods(named *types.Named, name string) (lines []string) {
	ofValue := types.NewMethodSet(named)
	for m := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		if !m.Obj().Exported() {
			continue
		}
		receiver := "*" + name
		if ofValue.Lookup(m.Obj().Pkg(), m.Obj().Name()) != nil {
			receiver = name
		}
		lines = append(lines, e.line("func (%s) %s%s", receiver, m.Obj().Name(), e.signature(m.Obj().(*types.Func))))
	}
	return lines
}

// signature returns the signature of a function.
func (e exporter) signature(f *types.Func) string {
	var parameters []string
	for p := range f.Signature().TypeParams().TypeParams() {
		parameters = append(parameters, p.Obj().Name()+" "+e.text(p.Constraint()))
	}
	text := strings.TrimPrefix(e.text(f.Signature()), "func")
	if parameters != nil {
		text = "[" + strings.Join(parameters, ", ") + "]" + text
	}
	return text
}

// unnamed removes the names of parameters, which may change.
func unnamed(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		return types.NewSignatureType(nil, nil, nil, unnamedAll(t.Params()), unnamedAll(t.Results()), t.Variadic())
	case *types.Slice:
		return types.NewSlice(unnamed(t.Elem()))
	case *types.Pointer:
		return types.NewPointer(unnamed(t.Elem()))
	case *types.Map:
		return types.NewMap(unnamed(t.Key()), unnamed(t.Elem()))
	}
	return t
}

func unnamedAll(t *types.Tuple) *types.Tuple {
	var all []*types.Var
	for v := range t.Variables() {
		all = append(all, types.NewParam(token.NoPos, nil, "", unnamed(v.Type())))
	}
	return types.NewTuple(all...)
}
