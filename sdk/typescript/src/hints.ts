/** Hints of the API, which name requests, in the words of the SDK and of the command line. */

const FORMS: [RegExp, string][] = [
  [/GET \/v1\/types shows the (schema|settings) of `(.+)`/, "the page of the type `$2` in the web UI shows its $1"],
  [/GET \/v1\/types lists/, "`kafleet types` lists"],
  [/POST \/v1\/tasks\/\S+\/retry/, "`handle.retry()`"],
  [/POST \/v1\/tasks\/\S+\/start/, "`handle.startNow()`"],
  [/PUT \/v1\/tasks\/\S+\/state/, "`handle.report(state)`"],
  [/send the task and its children to POST \/v1\/batches\?atomic=true/, "write `group(…).submit()`"],
  [/GET \/v1\/tasks\/(\S+)\/attachments lists/, "`kafleet attachments list $1` lists"],
  [/with PUT \/v1\/schedules\/([^\s,]+)/, "with `kafleet schedules change $1`"],
  [/DELETE \/v1\/schedules\/\S+/, "`kafleet schedules delete ID`"],
  [/list them with GET \/v1\/schedules/, "`kafleet schedules list` lists them"],
  [/DELETE \/v1\/views\/\S+/, "`kafleet views delete NAME`"],
  [/list them with GET \/v1\/views/, "`kafleet views` lists them"],
  [/DELETE \/v1\/kill-switches\/\S+/, "`kafleet kill-switch off NAME`"],
  [/list them with GET \/v1\/kill-switches/, "`kafleet kill-switch list` lists them"],
];

/** Returns a hint of the API without the request that it names. */
export function hintOfSdk(hint: string): string {
  return FORMS.reduce((text, [request, form]) => text.replace(request, form), hint);
}
