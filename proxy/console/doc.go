// Package console shows a trace, branches, limits and definitions as web pages, to auditors and
// operators. [New] returns a handler for a state directory, of a gateway that runs or of a copy;
// [Console.Watch] keeps its indexes up to date. Pages are HTML that a browser without JavaScript can
// read. Scripts only add charts and updates.
//
// Everything that hosts and servers wrote is shown as text: the templates escape markup, [render.Text]
// escapes what is not printable, and the policy of the pages forbids scripts and styles that are not
// foldgate's own files.
package console
