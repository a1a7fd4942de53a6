// Source text to [class, text] pieces: comments, strings, numbers and words that many languages reserve. A colouring, not a parser. It
// knows no DOM.

const kWords = new Set((
  'abstract and as assert async await bool boolean break byte case catch char class const constexpr continue def default defer del delete do double ' +
  'elif else elsif end enum except export extends extern false False final finally float fn for foreach from func function global go goto if impl ' +
  'implements import in inline instanceof int interface is lambda let long loop match mod module mut namespace new nil None nonlocal not null ' +
  'nullptr or override package pass private protected pub public raise readonly ref return self short signed sizeof static std str string struct ' +
  'super switch template then this throw throws trait true True try type typedef typename typeof union unless unsigned until use using var virtual ' +
  'void volatile when where while with yield').split(' '));
const kShellWords = new Set('if then else elif fi for in do done while until case esac function return local export set unset exit sudo echo cd source'.split(' '));
const kSqlWords = new Set((
  'select from where and or not null insert into values update set delete create table drop alter index view join left right inner outer full on as ' +
  'group by order having limit offset union all distinct case when then else end primary key foreign references default unique in is like between exists with').split(' '));

const kHash = /^(?:py|python|sh|bash|zsh|shell|console|yaml|yml|toml|ini|conf|ruby|rb|perl|pl|r|make|makefile|cmake|dockerfile|nix|elixir|julia|powershell|ps1)$/;
const kShell = /^(?:sh|bash|zsh|shell|console|fish|dockerfile)$/;
const kDashes = /^(?:sql|sqlite|postgres|postgresql|mysql|plsql|lua|haskell|hs|ada|vhdl)$/;
const kMarkup = /^(?:html|xml|svg|vue|xhtml)$/;
const kPlain = /^(?:|text|txt|plain|plaintext|output|log|csv|markdown|md)$/;
const kMost = 50_000;  // characters that are coloured

export function highlight(text, language) {
  const lang = language.toLowerCase();
  if (kPlain.test(lang) || text.length > kMost) return [['', text]];
  const words = kShell.test(lang) ? kShellWords : kDashes.test(lang) && lang !== 'lua' ? kSqlWords : kWords;
  const fold = words === kSqlWords;
  const pieces = [];
  const put = (kind, piece) => {
    if (pieces.length && pieces.at(-1)[0] === kind) pieces.at(-1)[1] += piece;
    else pieces.push([kind, piece]);
  };
  for (const { 0: piece, groups } of text.matchAll(lexer(lang))) {
    if (groups.comment !== undefined) put('comment', piece);
    else if (groups.string !== undefined) put('string', piece);
    else if (groups.tag !== undefined) put('word', piece);
    else if (groups.number !== undefined) put('number', piece);
    else if (groups.word !== undefined && words.has(fold ? piece.toLowerCase() : piece)) put('word', piece);
    else put('', piece);
  }
  return pieces;
}

// Each alternative takes at least one character, and together they take every one.
function lexer(lang) {
  const comment = kMarkup.test(lang) ? '<!-{2}(?:[^-]|-(?!->))*(?:-->)?'
    : kHash.test(lang) ? '(?<![^\\s;(])#[^\\n]*'
      : kDashes.test(lang) ? '--[^\\n]*'
        : lang === 'json' ? '(?!)' : '//[^\\n]*|/\\*(?:[^*]|\\*(?!/))*(?:\\*/)?';
  const string = '"""(?:[^"]|"(?!""))*(?:""")?|"(?:[^"\\\\\\n]|\\\\.)*"?|\'(?:[^\'\\\\\\n]|\\\\.)*\'|`(?:[^`\\\\]|\\\\[^])*`?';
  const tag = kMarkup.test(lang) ? '</?[A-Za-z][\\w:-]*|/?>' : '(?!)';
  return new RegExp(`(?<comment>${comment})|(?<string>${string})|(?<tag>${tag})|(?<number>(?<![\\w.])(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)(?![A-Za-z_]))|(?<word>[A-Za-z_$][\\w$]*)|[^]`, 'g');
}
